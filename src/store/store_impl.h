// StoreImpl: the store of store.h. Holds the parts and passes requests between them; the work is done in Pool (DRAM),
// Loader (reads from flash), Demoter with LogWriter (writes to flash) and Evictor (space on flash).
//
// Belongs to its loop. Without a flash tier there is a pool only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/loop.h"
#include "store/demoter.h"
#include "store/device_log.h"
#include "store/directory.h"
#include "store/flash.h"
#include "store/loader.h"
#include "store/namespaces.h"
#include "store/open_devices.h"
#include "store/pool.h"
#include "store/store.h"

namespace kvd::store {

class StoreImpl final : public Store {
 public:
  // Share of the pool that unfinished puts may take, so that gets always find room for theirs.
  static constexpr std::uint64_t kUnfinishedPercentMax = 50;
  // Records of the pool that are looked at in a turn of the loop when the device is back: a millisecond or less.
  static constexpr std::size_t kWalkRecords = 4096;
  // Lookups that are under way together, each with three lines of memory: as many as a core has misses in flight (10 to
  // 48).
  static constexpr std::size_t kLookupsAhead = 16;

  // What there is only with a flash tier. Declared in the order in which the parts use each other.
  struct FlashTier {
    FlashTier(io::Loop& loop, Log& log, StoreStats& stats, Namespaces& namespaces, Pool& pool,
              std::vector<StoreDirectory> directories_in, std::vector<OpenedDevice> opened,
              std::uint64_t index_records_max, const StoreOptions& options);
    ~FlashTier();
    void ends();  // what is dirty is to be written now, and nothing begun that can wait
    [[nodiscard]] DeviceLog& log_of(std::uint32_t segment) const { return *logs[flash.segments.at(segment).device]; }
    std::vector<StoreDirectory> directories;
    Flash flash;
    DeviceLogs logs;
    Demoter demoter;
    Loader loader;
  };

  StoreImpl(io::Loop& loop, Log& log, const StoreOptions& options);
  ~StoreImpl() override;

  // Takes memory, directory, flash file, and recovers unless options.recover_later. Blocks.
  Status open(io::DiskFactory& disks, std::string& why);
  Status recover(std::string* why) override;
  [[nodiscard]] bool recovering() const noexcept override { return recovering_ && tier_->flash.on(); }

  void drain(Time deadline, std::move_only_function<void()> on_done) override;
  Result<NamespaceHandle> open_namespace(const Namespace& ns) override { return namespaces_->open(ns); }
  Result<NamespaceHandle> open_own_namespace(const Namespace& ns) override { return namespaces_->open(ns, true); }
  void close_namespace(NamespaceHandle ns) override { namespaces_->close(ns); }
  [[nodiscard]] const block::NamespaceHash& namespace_hash(NamespaceHandle ns) const override;
  [[nodiscard]] const GroupSchema* schema(NamespaceHandle ns, std::uint16_t group) const override;
  [[nodiscard]] Tier lookup(NamespaceHandle ns, const block::RecordId& id) const override;
  void lookup_all(NamespaceHandle ns, std::span<const block::RecordId> ids, std::span<Tier> tiers) const override;
  [[nodiscard]] std::uint64_t room_bytes(NamespaceHandle ns) const noexcept override;
  void start_get(Get& get) override;
  void cancel(Get& get) override;
  void promote(NamespaceHandle ns, const block::RecordId& id) override;
  LeasePin pin_for_lease(NamespaceHandle ns, const block::RecordId& id, std::uint64_t bytes_max) override;
  std::uint64_t unpin_lease(Pin pin) override;
  Result<PutHandle> begin_put(NamespaceHandle ns, const block::RecordId& id, Bytes foreign) override;
  Result<PutHandle> begin_replacement(NamespaceHandle ns, const block::RecordId& id, Bytes foreign) override;
  void complete_put(PutHandle put, std::span<const std::uint64_t> checksums, AckLevel level,
                    std::move_only_function<void(Status)> on_ack) override;
  void await(NamespaceHandle ns, const block::RecordId& id, AckLevel level,
             std::move_only_function<void(Status)> on_ack) override;
  bool check(NamespaceHandle ns, const block::RecordId& id) override;
  bool remove(NamespaceHandle ns, const block::RecordId& id) override;
  void await_removals(std::move_only_function<void(Status)> on_ack) override;
  void set_quotas(std::span<const TenantQuota> quotas) override;
  [[nodiscard]] std::vector<TenantFigures> tenant_figures(std::size_t max) const override;
  [[nodiscard]] std::vector<DeviceFigures> device_figures() const override;
  [[nodiscard]] std::uint64_t flash_quota_bytes(NamespaceHandle ns) const noexcept override;
  // What the counter of this open namespace's tenant should say, by a look at all images. For tests.
  [[nodiscard]] std::uint64_t recount_pool(NamespaceHandle ns) const;
  // What flash serves of this record, whether or not the pool has it. For tests.
  [[nodiscard]] std::uint64_t flash_bytes_of(NamespaceHandle ns, const block::RecordId& id) const;
  [[nodiscard]] int pool_fd() const noexcept override { return pool_->fd(); }
  [[nodiscard]] int shared_fd() const noexcept override { return pool_->shared_fd(); }
  [[nodiscard]] std::uint64_t pool_bytes() const noexcept override { return pool_->bytes(); }
  [[nodiscard]] const StoreStats& stats() const noexcept override { return stats_; }
  [[nodiscard]] std::array<std::byte, 16> uuid() const noexcept override;
  [[nodiscard]] std::uint64_t boot_epoch() const noexcept override;

 protected:
  void drop_put(PoolRecord& record) noexcept override;

 private:
  struct Drain {
    Drain(io::Loop& loop, io::Callback check) : timer(loop, std::move(check)) {}
    Time deadline;
    std::move_only_function<void()> on_done;
    io::Timer timer;
    bool rolled = false, syncing = false, synced = false;
    Time list_until = kNever;          // once it is synced: segments that are being given up are waited for until then
    std::size_t listing = 0;           // tables that are being written
    bool listed = false;               // they are, or none is possible
    std::uint64_t dropped_before = 0;  // StoreStats::writes_dropped
  };

  Status open_pool(std::string& why);
  Status open_flash(io::DiskFactory& disks, std::string& why);
  Status make_tier(OpenedDevices opened, std::string& why);
  void connect();
  Status read_flash(std::string& why);
  // Recovery has put everything in its place: the store may write.
  Status begin_writing(std::string& why);
  Status shrink(DeviceLog& of, std::string& why);
  [[nodiscard]] std::optional<std::uint32_t> segment_to_lend(const FlashDevice& device) const;
  void retire(DeviceLog& of, std::uint32_t segment);
  [[nodiscard]] const GroupInfo* group_of(NamespaceHandle ns, std::uint16_t group) const noexcept;
  // What flash serves of a record: not what its tenant has given up.
  [[nodiscard]] std::optional<Flash::Found> find_on_flash(const RecordKey& key) const noexcept;
  [[nodiscard]] bool serves(const TenantSpace& tenant, const std::optional<Flash::Found>& found) const noexcept {
    return found && !tier_->flash.usage.given_up(tenant, found->place.segment, found->place.offset);
  }
  // Whether what is here of a record is what was put.
  [[nodiscard]] static bool sound(const PoolRecord& record);
  // Whether a record in the pool can serve all its layers, from there or with what is still on flash.
  [[nodiscard]] bool usable(const PoolRecord& record) const noexcept;
  [[nodiscard]] Tier tier_of(const PoolRecord& record) const noexcept;
  // The record of this key in the pool; one that is incomplete and has lost its place on flash is dropped.
  PoolRecord* find_usable(const RecordKey& key);
  // A record on flash that gets an image in the pool; null when there is no room.
  PoolRecord* begin_load(const RecordKey& key, const block::RecordShape& shape, const Flash::Found& found);
  PoolRecord* start_promotion(const RecordKey& key);
  void get_from_flash(Get& get, const RecordKey& key, const GroupInfo& group);
  // A copy of layers that are in the pool; an empty view when there is no room for it.
  RecordView copy_of(PoolRecord& record, std::uint32_t first, std::uint32_t count);
  // A record on flash that failed verification while it was passing.
  void forget_passing(const PoolRecord& image);
  void used(PoolRecord& record);
  // The group of a put, when one may begin.
  Result<const GroupInfo*> check_put(NamespaceHandle ns, const block::RecordId& id, Bytes foreign);
  Result<PutHandle> start_put(const RecordKey& key, const GroupInfo& group, Bytes foreign);
  // `record` is about to be published: what is stored under its key leaves pool and index, and its places on flash are
  // remembered with `record`.
  void supersede(PoolRecord& record);
  // Where copies of a record may lie that the index does not know and a start could find: in segments that are being
  // given up, in frames of rewrites that failed, and where recovery could not read. The first two are told once: they
  // are to be buried or replaced.
  std::vector<ReplacedPlace> take_unindexed(std::uint64_t hash);
  void finish_get(Get& get, Result<RecordView> result);
  void forget_record(PoolRecord& record);
  void bury(const RecordKey& key, const FlashPlace& place, std::uint64_t put_seq = 0);
  void forget_copy(const RecordKey& key, const FlashPlace& place);
  void lend_pool();
  // There was no room in the pool for a record of this key, or not within its tenant's quota: the error for who asked,
  // after what can be done for the next.
  Error crowded(const RecordKey& key, std::uint64_t bytes);
  void fit_flash_quotas();
  void begin_trim(TenantSpace& tenant);
  bool trim_some(TenantSpace& tenant);
  void trim();
  void check_drain();
  // All that is written is being flushed: marks the drain as synced or not in the end.
  void sync_all();
  // Everything is on flash: writes the tables of uses, where that is possible. Whether that is done.
  bool list_uses();
  void tell_losses();
  // A device went off; it is back (store_outage.cc).
  void device_off(DeviceLog& of);
  void device_back(DeviceLog& of);
  void walk();

  io::Loop& loop_;
  Log& log_;
  StoreOptions options_;
  StoreStats stats_;
  Uuid uuid_{};  // without a flash tier: of this opening
  std::unique_ptr<Namespaces> namespaces_;
  std::unique_ptr<Pool> pool_;       // outlives the flash tier: operations in flight use its memory
  std::unique_ptr<FlashTier> tier_;  // null without flash
  bool recovering_ = false;          // also with a tier that has gone off meanwhile
  io::Timer pool_ready_;             // armed until the pool's memory is there
  // Tenants that may have something beyond a quota that has become smaller, and the timer for the next slice of it.
  std::vector<TenantSpace*> beyond_quota_;
  io::Timer trim_;
  io::Timer walk_;  // armed while the pool is walked, from walk_from_ on, for what the device has missed
  std::uint32_t walk_from_ = 0;
  std::uint64_t lease_bytes_ = 0;
  std::uint64_t unfinished_bytes_ = 0;
  std::unique_ptr<Drain> drain_;
};

}  // namespace kvd::store
