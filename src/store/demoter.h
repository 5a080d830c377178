// Demoter: decides when records that are in DRAM only are written to flash, and acknowledges puts.
//
// Records are written in the order they were published: when the store has been idle for demote_idle, when one is older
// than demote_after, when somebody waits for it (urgent), when the pool fills with such records (pressure), and on
// drain. When what a tenant may have of the pool fills with its own, these are written and nobody else's. Otherwise
// reads come first. Records that somebody waits for overtake the others and share frames and flushes; so do removals,
// whose tombstones come first in every frame. A record whose frame failed is appended once more, elsewhere; then it
// stays in DRAM only and its puts end with kIo. What failed may be on the medium all the same, so it gets a tombstone:
// a later removal holds for it, too. Beside a copy that the tombstone would end as well it is a stray instead (Strays).
// After a failed flush the open segment is closed, tombstones that were not flushed before are written again, and a put
// that asks for `synced` appends its record anew; the first copy counts until that is written. Over the write budget no
// record is written: what would have to be now stays in DRAM only, where it may be evicted, and its puts end with
// kBusy. Removals and what segments need for themselves are written all the same.
//
// Of several devices the one that has been given the least takes the next frame (policy::Placement), tombstones go to
// theirs. What a record replaces or outdates on another device gets a tombstone there behind a flush of the record; its
// puts are told behind that. What a device had when it went off is written to the others. Belongs to the store's loop;
// acknowledgements come from the loop.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "io/loop.h"
#include "policy/placement.h"
#include "store/device_log.h"
#include "store/pool.h"
#include "store/recycler.h"
#include "store/tenant_space.h"

namespace kvd::store {

class Demoter {
 public:
  static constexpr std::uint64_t kFrameTarget = 2 << 20;  // storage design: 2 MiB, enough for a drive's stripe
  static constexpr std::uint64_t kFrameMax = 4 << 20;     // beyond it only single larger records
  static constexpr std::uint64_t kShareMin = 256 << 10;   // smaller urgent frames wait for the one before, to share
  static constexpr std::size_t kAcksReserved = 1024;  // that wait at once, for which memory is taken at start, at most

  struct Timing {
    Duration after{};
    Duration idle{};
  };

  Demoter(Flash& flash, Pool& pool, const DeviceLogs& logs, Timing timing);

  // Whether gets are being served from flash: demotion then waits when it can.
  void on_reading(std::function<bool()> reading) { reading_ = std::move(reading); }

  // A record was published as dirty.
  void add(PoolRecord& record);
  // It was removed before it was written: its waiting puts end with `why`.
  void forget(PoolRecord& record, const Status& why);
  // It leaves the pool for `by`, which takes over who waits for it.
  void replace(PoolRecord& record, PoolRecord& by);
  // Calls `on_ack` when `record`, which is published, has reached `level`, or never can; from inside when it has.
  void acknowledge(PoolRecord& record, AckLevel level, std::move_only_function<void(Status)> on_ack);
  // The same of a record that flash has, and the pool has not.
  void acknowledge(const RecordKey& key, const FlashPlace& place, AckLevel level,
                   std::move_only_function<void(Status)> on_ack);

  // Something is being removed or replaced: Flash::doubts_end.
  void end_doubts();
  // See Store.
  void await_removals(std::move_only_function<void(Status)> on_ack);

  // A request came: the store is not idle.
  void activity() noexcept { last_activity_ = flash_.loop.turn_begun(); }
  // There was no room in the pool: write until a good part of it is clean.
  void pressure();
  // The same of what this tenant may have.
  void press(TenantSpace& tenant);
  // Something may have changed (tombstones, a ready segment): look again, from the loop.
  void kick();
  // Writes everything from now on (or no longer), without waiting for idleness.
  void flush_always(bool always = true);

  // Nothing is dirty, no tombstone waits, nothing is being written.
  [[nodiscard]] bool settled() const noexcept;
  // A device is off: what it had is written to another one; its flushes end with kIo, its tombstones wait. Where none
  // is on, dirty records become evictable, and waiting puts end with kIo.
  void device_off(DeviceLog& log);
  // It is back: what waits is written now.
  void device_back(DeviceLog& log);
  // Behind that, of any record: a clean one that was not written while no device was on, or that one has lost, takes
  // the copy that there is or is written. False: too much waits.
  bool catch_up(PoolRecord& record);

 private:
  using Queue = List<PoolRecord, &PoolRecord::link>;
  static Status budget_spent() { return fail(Code::kBusy, "the write budget is spent"); }
  static Status beyond_quota() { return fail(Code::kBusy, "the record is larger than the tenant's quota of flash"); }
  using Tenants = List<TenantSpace, &TenantSpace::pressing_link>;

  void pump();
  [[nodiscard]] bool has_work();
  enum class Which : std::uint8_t { kNone, kOfPressing, kAll };
  [[nodiscard]] Which must_write();
  bool write_one(Which which);
  [[nodiscard]] static bool takes_records(DeviceLog& log);
  bool write_to(DeviceLog& log, Which which);
  [[nodiscard]] PoolRecord* next(Which which) const noexcept;
  [[nodiscard]] static bool only_carried(const DeviceLog& log) noexcept;
  void fill(DeviceLog& log, Frame& frame, Which which);
  void frame_done(DeviceLog& log, Frame& frame, const Status& status);
  void record_written(DeviceLog& log, PoolRecord& record, const FlashPlace& place);
  void record_failed(PoolRecord& record, const FlashPlace& place);
  void write_elsewhere(PoolRecord& record);
  bool make_index_room_now(DeviceLog& log);
  void end_elsewhere(DeviceLog& log, std::vector<Tombstone> copies);
  [[nodiscard]] std::optional<FlashPlace> copy_of(const PoolRecord& record) const;
  [[nodiscard]] bool take_copy(PoolRecord& record);
  void write_again(PoolRecord& record);
  void note_stray(const PoolRecord& record, const FlashPlace& place);
  void end_copies(const RecordKey& key, const FlashPlace& place);
  void give_up(PoolRecord& record, const Status& why);
  void drop_due();
  void add_ack(PoolRecord& record, AckLevel level, std::move_only_function<void(Status)> on_ack);
  void take_acks(PoolRecord& record, const Status& status);
  [[nodiscard]] bool older_elsewhere(std::uint64_t hash, const FlashPlace& place) const;
  void tell_behind_removals(DeviceLog& log, std::move_only_function<void(Status)> on_ack);
  enum class Removals : std::uint8_t { kWritten, kWaiting, kLost };
  [[nodiscard]] Removals removals_before(std::uint64_t put_seq) const;
  void take_removals();
  void flushed(DeviceLog& log, bool ok);
  void tombstones_durable();
  void tell_acks();
  void uncount(const PoolRecord& record);
  void dequeue(PoolRecord& record);
  void sort_in(TenantSpace& tenant);
  [[nodiscard]] DeviceLog& log_of(const FlashPlace& place) const {
    return *logs_[flash_.segments.at(place.segment).device];
  }
  // Whether it holds for a device that is on.
  [[nodiscard]] bool any(auto holds) const {
    return std::ranges::any_of(logs_, [&](const auto& log) { return log->device.health.on() && holds(*log); });
  }
  [[nodiscard]] bool pending() const {
    return any([](const DeviceLog& log) { return log.device.tombstones.pending(); });
  }
  // Whether all that are on would be, with so many bytes more.
  [[nodiscard]] bool over_budget(std::uint64_t more = 0) const {
    return !any([more](DeviceLog& log) { return !log.device.over_budget(more); });
  }

  Flash& flash_;
  Pool& pool_;
  const DeviceLogs& logs_;
  const Timing timing_;
  policy::Placement placement_;
  std::function<bool()> reading_;

  Queue urgent_;                   // somebody waits for them
  Queue waiting_;                  // in order of publication
  std::uint64_t dirty_bytes_ = 0;  // in both queues and in frames
  bool pressure_ = false;
  Tenants pressing_;  // those with records that are to be written now; they take turns with frames
  bool flush_always_ = false;
  Time last_activity_;
  Time removal_at_ = kNever;  // when the first tombstone that waits was seen
  io::Timer pump_;
  struct RemovalWait {
    std::uint64_t before = 0;  // waits for tombstones with a lower put_seq
    std::move_only_function<void(Status)> on_ack;
  };
  std::deque<RemovalWait> removal_waits_;  // `before` grows
  io::Timer acks_;                         // acknowledgements that are due, told from the loop
  using Due = std::vector<std::pair<std::move_only_function<void(Status)>, Status>>;
  Due due_, telling_;
  Recycler<PoolRecord::Ack> ack_nodes_;
};

}  // namespace kvd::store
