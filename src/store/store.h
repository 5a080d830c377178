// Store: one node's tiers: a DRAM pool over a log of fixed segments on flash, and the index that finds records in both.
//
// One store belongs to one loop and is used on its thread only; nothing here blocks except open() and close().
// Contracts (docs/architecture.md): a get yields exactly what some put stored, or a miss; a record is complete or
// absent; memory and disk are allocated at open and bounded by the options; a removal stays removed after a crash.
// The pool's memory is one memfd mapping (fd() lets a transport send from it); record images in the pool equal those on
// flash: [table page][slab 0][slab 1]..., each slab on a page boundary (src/block/schema.h).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/result.h"
#include "block/checksum.h"
#include "block/key.h"
#include "io/disk.h"
#include "io/loop.h"
#include "kvdepot/types.h"
#include "policy/eviction.h"

namespace kvd::store {

// A directory that holds one device of a store.
struct DeviceOptions {
  std::string dir;
  std::uint64_t flash_bytes = 0;
  bool flash_bytes_given = true;  // false: flash_bytes is for a new device only, an existing one keeps its size
};

struct StoreOptions {
  std::string dir;                                    // created with mode 0700; holds flash.kvd and LOCK
  std::uint64_t pool_bytes = std::uint64_t{1} << 30;  // DRAM tier, >= 64 MiB; the largest record must fit in 1/4 of it
  std::uint64_t flash_bytes = 0;                      // NVMe tier, rounded down to segments; 0 = DRAM only (dir unused)
  bool flash_bytes_given = true;  // false: flash_bytes is for a new store only, an existing one keeps its size
  // Beside the one of `flash_bytes` in `dir`, 16 in all. From the first time on `dir` has the list of them, all are to
  // be named at each opening, and `flash_bytes` may be 0: then `dir` has no segments.
  std::vector<DeviceOptions> devices;
  bool forget_missing = false;      // devices of the store that are not there are given up, for good
  std::uint64_t segment_bytes = 0;  // 16 MiB..256 MiB, power of two; 0 = the largest that gives 32 segments. Only a
                                    // new store asks: an existing one keeps its own
  policy::Eviction eviction = policy::Eviction::kLru;  // which segment is given up for new records
  std::uint64_t index_records_max = 0;                 // 0 = flash_bytes / 64 KiB; 17.8 bytes of DRAM each
  std::uint64_t scrub_bytes_per_s = 0;                 // reading sealed segments to find damage; 0 = off
  // The flash tier may be written over so many times a day, as a drive's endurance is given; records beyond 0.8 of that
  // stay in DRAM only. 0 = unbounded. Needs a flash tier.
  double drive_writes_per_day = 0;
  Duration demote_after = std::chrono::seconds(30);      // age bound of a record that is in DRAM only
  Duration demote_idle = std::chrono::milliseconds(50);  // no request for this long = idle: demotion starts
  std::uint32_t pinned_percent_max = 50;                 // share of the pool that leases may pin
  bool prefault = true;                                  // touch the memory of index and pool in the background
  bool share_pool = false;                               // seal the pool's memory for readers: see shared_fd()
  bool verify = true;                                    // verify slabs read from flash; false only in tests
  bool recover_later = false;                            // open() leaves recovery to recover()
  std::size_t removals_waiting_max = 65'536;             // for a device that is off; tests: fewer
  std::size_t tombstones_spent_max = 0;                  // 0: Tombstones::kSpentMax, or more; tests: fewer
  std::uint64_t index_sweep_buckets = 64 << 10;          // of a segment without footer, in a turn; tests: fewer
  bool list_uses = true;                                 // false in tests: no table of uses is written
  bool force_threads = false;                            // tests: disk engine without io_uring
  bool small_sizes = false;                              // tests: no lower limits on pool, flash and segments
};

// A namespace opened on this store; small, valid until close_namespace(). Handles of equal namespaces are equal.
using NamespaceHandle = std::uint32_t;

class Store;
class PoolRecord;  // a record's image in the pool, with its state; internal (src/store/pool.h)

// Keeps a record's pool image in place and unchanged. Move-only RAII; outlives neither the store nor its loop. A pin of
// pin_for_lease() ends in unpin_lease(), or its bytes stay counted against the leases' share.
class Pin {
 public:
  Pin() = default;
  explicit Pin(PoolRecord* record) noexcept;
  Pin(Pin&& other) noexcept;
  Pin& operator=(Pin&& other) noexcept;
  ~Pin();
  explicit operator bool() const noexcept { return record_ != nullptr; }
  [[nodiscard]] PoolRecord* get() const noexcept { return record_; }

 private:
  PoolRecord* record_ = nullptr;
};

// What a lease has of a record, and what it took of the leases' share: nothing where another lease had the record.
struct LeasePin {
  Pin pin;
  std::uint64_t bytes = 0;
};

// A readable stretch of layers of a pinned record.
struct RecordView {
  Pin pin;
  const std::byte* first_slab = nullptr;  // slab `layer_first`; the next one is slab_stride bytes on
  std::uint64_t pool_offset = 0;          // of first_slab inside the pool's memfd
  std::uint32_t slab_stride = 0;
  std::span<const std::uint64_t> checksums;  // one per layer of the stretch
  // The record's own checksum: equal for all stretches of one put, another where the record was replaced between two
  // gets by one with other bytes.
  std::uint64_t content = 0;
};

// One get of one record's layers [layer_first, layer_first + layer_count), owned by the caller until on_done.
// on_done comes exactly once: from inside start_get() when the answer is known there (the bytes are in the pool, the
// record is nowhere, there is no room), otherwise from the loop. It may destroy the Get and start or cancel others, but
// not destroy the store.
// Errors in `result` are all misses to the engine: kNotFound, kCorrupt (dropped after one retry), kBusy (no room in
// the pool), kTimeout, kIo, kCancelled; kInvalid for layers or a group that the schema does not have.
struct Get {
  NamespaceHandle ns = 0;
  block::RecordId id;
  Bytes foreign;  // compared with the record's; empty for native keys; must stay valid until on_done
  std::uint16_t layer_first = 0;
  std::uint16_t layer_count = 0;  // 0 = all from layer_first on
  Time deadline = kNever;
  // Takes no more of the pool than these layers and a page, for as long as the view lives: for a get of many records
  // that do not fit into the pool together. What is in the pool is copied, what is on flash is not kept.
  bool passing = false;
  std::move_only_function<void(Result<RecordView>)> on_done;
  void* internal = nullptr;  // the store's, null when idle
};

// A record being put: its image in the pool is writable until it is published or dropped. Dropping (destroying) it
// before complete() leaves no trace. Unfinished puts are bounded by the pool; they are never evicted.
class PutHandle {
 public:
  PutHandle() = default;
  PutHandle(PutHandle&& other) noexcept;
  PutHandle& operator=(PutHandle&& other) noexcept;
  ~PutHandle();
  explicit operator bool() const noexcept { return record_ != nullptr; }
  // Where slab `layer` goes: shape.slab_bytes writable bytes (padding after it is zeroed by the store).
  [[nodiscard]] MutableBytes slab(std::uint16_t layer) const noexcept;
  [[nodiscard]] std::uint64_t seed() const noexcept;  // block::record_seed of this record

 private:
  friend class Store;
  PutHandle(Store* store, PoolRecord* record) noexcept : store_(store), record_(record) {}
  Store* store_ = nullptr;
  PoolRecord* record_ = nullptr;
};

// What a tenant may take up.
struct SpaceQuota {
  static constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t pool_bytes = kUnlimited;   // images in the pool, table pages and padding included
  std::uint64_t flash_bytes = kUnlimited;  // the same of records that flash serves
  std::uint64_t namespaces = kUnlimited;   // open at once; those that are stay open
  friend bool operator==(const SpaceQuota&, const SpaceQuota&) noexcept = default;
};

struct TenantQuota {
  std::string tenant;
  SpaceQuota quota;
};

// What a tenant takes up, and what its quota has cost it.
struct TenantFigures {
  std::string tenant;   // "(others)" where `summed`
  bool summed = false;  // of several tenants, without quotas
  SpaceQuota quota{};
  std::uint64_t pool_bytes = 0;
  std::uint64_t pool_refused = 0;    // images for which there was no room within the quota
  std::uint64_t pool_evictions = 0;  // records that left the pool for others of this tenant
  std::uint64_t flash_bytes = 0;
  std::uint64_t flash_given_up = 0;  // bytes of records that flash serves no more, for others of this tenant
  std::uint64_t namespaces = 0;      // that are open
  std::uint64_t namespaces_refused = 0;
};

// What one device did and how it stands. Sums over the devices are in StoreStats.
struct DeviceStats {
  Counter bytes_read, bytes_written, bytes_discarded, bytes_scrubbed, io_errors, outages;
  Gauge bytes, segments, segments_free, records;
  Gauge segments_doubtful;               // whose headers could not be read at the start; not used
  Gauge off;                             // 1 while it is off because it fails
  Gauge removals_waiting;                // tombstones that are to be written to it
  Gauge in_flight;                       // operations that it has not answered
  std::atomic<const char*> why_off{""};  // static text; of the last outage
};

struct DeviceFigures {
  std::string dir;
  const DeviceStats* stats;  // lives as long as the store
};

struct StoreStats {
  Counter pool_hits, flash_hits, misses, puts, puts_duplicate, puts_replacing, puts_refused, removes, corrupt;
  Counter io_errors, busy;
  Counter bytes_put, bytes_got, flash_bytes_written, flash_bytes_read, segments_evicted, pool_evictions, tombstones;
  Counter scrubbed_bytes, scrub_passes, writes_dropped, flash_bytes_discarded, tier_outages;
  Gauge pool_bytes_used, pool_bytes_pinned, pool_records, flash_records, segments_free, dirty_bytes, dirty_records;
  Gauge flash_tombstones;
  Gauge recovered_records, recovered_dropped, recovered_tombstones, recovery_ms, unfinished_puts, tier_off;
  Gauge recovering, recovery_percent;
};

class Store {
 public:
  // Opens or creates the store; recovery runs before it returns, unless options.recover_later. Errors name what to do:
  // kBusy (another process holds the directory), kStale (a newer format version), kNoSpace, kInvalid (impossible
  // sizes), kIo (not writable, foreign directory). Damaged cache content is never an error: it is dropped and counted.
  // On error `why`, if given, becomes one line that names what is wrong and what to do. `disks` is where the flash file
  // is opened (null: the real disks). Runs the loop, so it must not be called from a callback.
  static Result<std::unique_ptr<Store>> open(io::Loop& loop, Log& log, const StoreOptions& options,
                                             std::string* why = nullptr, io::DiskFactory* disks = nullptr);
  // Before anything is written: kInvalid when a flash tier would have to share its directory with files of something
  // else, with `why` as above. What else may be wrong open() says.
  static Status check_directory(const StoreOptions& options, std::string* why = nullptr);
  // What each device of the flash tier will take: the size of the file that is there where the store keeps it, else
  // what is asked for. Of a file that is damaged it may be neither. None: memory only. Blocks for a look at the files.
  static std::vector<DeviceOptions> device_sizes(const StoreOptions& options);
  // Ends gets that wait with kCancelled, waits for the device. Pins and put handles must be gone.
  virtual ~Store() = default;

  // Once, behind an open() with options.recover_later: reads what flash holds. Runs the loop until that is known, so it
  // must not be called from a callback, and the store must not be destroyed meanwhile; but everything else may be asked
  // of it meanwhile. Until it returns, gets and lookups find records of which it is known already that nothing newer
  // says otherwise, the last written first, and miss the others; puts are refused with kBusy, nothing is written and
  // nothing given up; remove() must not be called. A drain() ends it: kCancelled. Other errors as those of open(), with
  // `why`; then the store is to be destroyed. Where the device fails or hangs so that the flash tier goes off, nobody
  // waits for what flash holds any more: the pool serves from then on, though recover() may not return yet.
  virtual Status recover(std::string* why = nullptr) = 0;
  // Whether what flash holds is still to be read, and will count then. StoreStats::recovering is 1 until recover()
  // returns.
  [[nodiscard]] virtual bool recovering() const noexcept = 0;

  // Writes what is dirty to flash and flushes it, at most until `deadline`, then on_done; records that could not
  // be written are a warning in the log. New puts are refused with kBusy from here on.
  virtual void drain(Time deadline, std::move_only_function<void()> on_done) = 0;

  // kInvalid when the same tenant and fingerprint are known here with another schema; kNoSpace when 65,535 are open,
  // or as many of this tenant as it may have; kUnavailable while the store recovers and has not yet read records of all
  // groups of `ns`: ask again.
  virtual Result<NamespaceHandle> open_namespace(const Namespace& ns) = 0;
  // The same of a namespace that nobody but the caller can name, and always with this schema: what flash holds of it
  // need not have been read.
  virtual Result<NamespaceHandle> open_own_namespace(const Namespace& ns) = 0;
  // Once for each open_namespace(). With the last one the handle may come to name another namespace; records stay. Puts
  // and gets that are under way go on, but no call may name the handle any more.
  virtual void close_namespace(NamespaceHandle ns) = 0;
  [[nodiscard]] virtual const block::NamespaceHash& namespace_hash(NamespaceHandle ns) const = 0;
  // Null when the namespace has no such group.
  [[nodiscard]] virtual const GroupSchema* schema(NamespaceHandle ns, std::uint16_t group) const = 0;

  // Where a record would be served from; no side effects on recency.
  [[nodiscard]] virtual Tier lookup(NamespaceHandle ns, const block::RecordId& id) const = 0;
  // The same for each of `ids`, into `tiers`, which is as long. Faster than one by one: the memory reads of several
  // lookups overlap.
  virtual void lookup_all(NamespaceHandle ns, std::span<const block::RecordId> ids, std::span<Tier> tiers) const;
  // Bytes of the pool that new images of this namespace, which is open, may have now: free, or taken by records that
  // may be evicted, and within the tenant's quota. Other images in between may keep a large one from getting them.
  [[nodiscard]] virtual std::uint64_t room_bytes(NamespaceHandle ns) const noexcept = 0;
  // Starts `get`. See Get for how it ends. cancel() of a started get ends it now with kCancelled (from inside).
  virtual void start_get(Get& get) = 0;
  virtual void cancel(Get& get) = 0;
  // Starts bringing a flash record into the pool, if there is room; fire and forget, bounded.
  virtual void promote(NamespaceHandle ns, const block::RecordId& id) = 0;  // a following get finds its I/O in flight
  // Pins a record that is in the pool (complete and published), where the leases' share has room for it and it takes no
  // more than `bytes_max` of that. Empty = not pinned.
  virtual LeasePin pin_for_lease(NamespaceHandle ns, const block::RecordId& id, std::uint64_t bytes_max) = 0;
  // Returns what of the leases' share is free again: nothing as long as another lease has the record.
  virtual std::uint64_t unpin_lease(Pin pin) = 0;

  // Starts a put. Empty handle = the record is present already (nothing to do). kBusy = no room now, also within the
  // tenant's quota; kInvalid.
  virtual Result<PutHandle> begin_put(NamespaceHandle ns, const block::RecordId& id, Bytes foreign) = 0;
  // The same for a record that changes: complete_put() of this handle takes the place of what is stored under the id
  // then, present or not. Until then readers find the old record, afterwards the new one; pins keep what they pin, and
  // gets that wait for the old one end with kNotFound. After a crash the newest record that was written is found, and
  // no older one in its place. Acknowledgements that the old record still owed come with those of the new one. All
  // records of such an id must be put this way, with one geometry.
  virtual Result<PutHandle> begin_replacement(NamespaceHandle ns, const block::RecordId& id, Bytes foreign) = 0;
  // All slabs are in place with these checksums (one per layer, verified by the caller): publishes the record.
  // on_ack comes when `level` is reached (from inside for kPooled), with kIo when it cannot be, kBusy when the write
  // budget is spent, kCancelled when the record is removed before.
  virtual void complete_put(PutHandle put, std::span<const std::uint64_t> checksums, AckLevel level,
                            std::move_only_function<void(Status)> on_ack) = 0;

  // For a put that begin_put() answered with an empty handle: calls on_ack when the present record has reached `level`
  // (from inside when it has), or with kIo, kNotFound or kBusy when it cannot.
  virtual void await(NamespaceHandle ns, const block::RecordId& id, AckLevel level,
                     std::move_only_function<void(Status)> on_ack) = 0;

  // Verifies the record's image in the pool, as far as it is there (as long as hashing it takes), and drops an image
  // that is damaged: what flash holds of the record serves from then on. True when it was dropped.
  virtual bool check(NamespaceHandle ns, const block::RecordId& id) = 0;

  // Removes a record from every tier; true when it was present. Not while recovering(): who asks has to ask again.
  // Until its tombstone is written a crash may bring it back: see await_removals().
  virtual bool remove(NamespaceHandle ns, const block::RecordId& id) = 0;
  // Calls `on_ack` when all removals so far survive the death of the process (as level kWritten; a flush follows by
  // itself): from inside when they do, else from the loop after a small frame that all who wait share, or (very many
  // absent records, in a segment that is being given up and cannot say what it holds) when that is gone. kIo: the flash
  // tier is off, so what it holds may come back at the next start. Not called when the store closes before.
  virtual void await_removals(std::move_only_function<void(Status)> on_ack) = 0;

  // These tenants have these quotas from now on, all others none. At its quota of the pool a tenant's next image takes
  // the place of its own records that may be evicted, the least recently used first, and is refused where these do not
  // suffice. At its quota of flash its oldest records are found there no more, and what is larger than all of it stays
  // in the pool: who waits for it on flash hears kBusy. What is beyond a quota now goes in slices, a tenant in a turn
  // of the loop; what is pinned or waits to be written goes as soon as it may.
  virtual void set_quotas(std::span<const TenantQuota> quotas) = 0;
  // What all records of this namespace's tenant together may take up on flash: a value of several records that is
  // larger will not be there whole.
  [[nodiscard]] virtual std::uint64_t flash_quota_bytes(NamespaceHandle ns) const noexcept = 0;
  // Of the first `max` tenants by name that have a quota or a namespace that is open or has something in it, and of all
  // others together as "(others)". Any thread.
  [[nodiscard]] virtual std::vector<TenantFigures> tenant_figures(std::size_t max) const = 0;

  // Of each device, in the order of the list; empty without flash. Any thread.
  [[nodiscard]] virtual std::vector<DeviceFigures> device_figures() const = 0;

  // The pool's memfd and mapping, for transports.
  [[nodiscard]] virtual int pool_fd() const noexcept = 0;
  // The pool's memfd for other processes, who can map it for reading only and rely on its size; -1 unless
  // options.share_pool and the kernel can seal it so (5.1 and later). RecordView::pool_offset counts in it. Borrowed.
  [[nodiscard]] virtual int shared_fd() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t pool_bytes() const noexcept = 0;
  [[nodiscard]] virtual const StoreStats& stats() const noexcept = 0;
  // Identity of the store (random, from its superblock) and number of this opening, for HELLO.
  [[nodiscard]] virtual std::array<std::byte, 16> uuid() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t boot_epoch() const noexcept = 0;

 protected:
  friend class PutHandle;
  PutHandle handle_of(PoolRecord& record) noexcept { return {this, &record}; }
  static PoolRecord* take_record(PutHandle& put) noexcept;
  static PoolRecord& record_of(const PutHandle& put) noexcept { return *put.record_; }
  // An unfinished put was dropped.
  virtual void drop_put(PoolRecord& record) noexcept = 0;
};

}  // namespace kvd::store
