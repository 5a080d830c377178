// Flash: what the parts of the flash tier share: the volume, the index, the segments, the tombstones, the counters of
// sequence, and the tier's health. A plain struct owned by the store; its parts (LogWriter, Evictor, Loader, Demoter)
// borrow it. Everything runs on the store's loop.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "io/loop.h"
#include "policy/write_budget.h"
#include "store/flash_health.h"
#include "store/flash_usage.h"
#include "store/hidden_hashes.h"
#include "store/index.h"
#include "store/namespaces.h"
#include "store/pool_record.h"
#include "store/recycler.h"
#include "store/segments.h"
#include "store/store.h"
#include "store/strays.h"
#include "store/tombstones.h"
#include "store/volume.h"

namespace kvd::store {

struct Flash {
  Flash(io::Loop& loop_in, Log& log_in, StoreStats& stats_in, Namespaces& namespaces_in, Volume volume_in,
        std::uint64_t index_records_max, policy::Eviction eviction, const policy::WriteBudget& write_budget)
      : loop(loop_in),
        log(log_in),
        stats(stats_in),
        namespaces(namespaces_in),
        volume(std::move(volume_in)),
        index(index_records_max),
        segments(volume.segments(), policy::make_eviction(eviction, volume.segments())),
        usage(segments, volume.segment_pages()),
        tombstones(segments),
        health(loop, log, volume.disk()),
        write_budget_(write_budget),
        budget_at_(loop.now()),
        segment_namespaces_(segments.count()),
        hidden_(index_records_max),
        flights_(kFlightsReserved),
        refused_timer_(loop, [this] { fail_refused(); }) {}
  Flash(const Flash&) = delete;
  Flash& operator=(const Flash&) = delete;

  struct Found {
    FlashPlace place;
    std::uint32_t pages = 0;
  };
  // Where a record lies that a start could find, whether or not it may be read now: what removals ask, and puts that
  // take its place. The place's generation is filled in.
  [[nodiscard]] std::optional<Found> known(std::uint64_t hash) const noexcept { return found(index.find(hash)); }
  // Where a record lies that may be read, also one that its tenant has given up; nothing when the tier is off.
  [[nodiscard]] std::optional<Found> find(std::uint64_t hash) const noexcept {
    if (!health.on() || hidden_.contains(hash)) return std::nullopt;
    return there(known(hash));
  }
  // The same, of which the index has fetched the place.
  [[nodiscard]] std::optional<Found> find(std::uint64_t hash, const FlashIndex::Place& place) const noexcept {
    if (!health.on() || hidden_.contains(hash)) return std::nullopt;
    return there(found(index.find(place)));
  }
  // Enters a record that was written into the index and counts it. False when the index has no place. `outdated`, where
  // it is given, gets the place that the index had for it; its generation stays 0 when there was none.
  bool enter(const RecordKey& key, const IndexEntry& entry, FlashPlace* outdated = nullptr);
  // Takes a record out of the index, if it lies there.
  void leave(const RecordKey& key, std::uint32_t segment, std::uint32_t offset);
  // Whether this record's tenant may have it on flash at all.
  [[nodiscard]] static bool admits(const PoolRecord& record) noexcept {
    return record.bytes() <= record.tenant->quota.flash_bytes;
  }
  // What is found under this hash is not given out before recovery has ended: a tombstone was seen that may mean it.
  // Others may be hidden with it (HiddenHashes).
  void hide(std::uint64_t hash) { hidden_.add(hash); }
  void unhide_all() { hidden_.clear(); }
  // What an entry of the index comes to.
  [[nodiscard]] std::optional<Found> found(const std::optional<IndexEntry>& entry) const noexcept {
    if (!entry || !segments.readable(entry->segment) || entry->interleave != 0) return std::nullopt;
    const FlashPlace place{entry->segment, entry->offset, segments.at(entry->segment).generation, entry->checksum};
    return Found{place, entry->pages};
  }
  // Whether a record's place still holds it.
  [[nodiscard]] bool backs(const FlashPlace& place) const noexcept {
    return health.on() && segments.holds(place.segment, place.generation) && !lost(place);
  }
  // Whether the device may have lost what lay there, when it went off.
  [[nodiscard]] bool lost(const FlashPlace& place) const noexcept {
    return segments.at(place.segment).generation == place.generation && segments.lost(place.segment, place.offset);
  }
  void update_gauges() {
    stats.flash_records.set(index.size());
    stats.segments_free.set(segments.count() - segments.occupied());
  }
  // Segment `segment` holds something of a namespace, or a tombstone names it there: it stays known until the segment
  // is given up.
  void hold_namespace(std::uint32_t segment, NamespaceHandle ns);
  void release_namespaces(std::uint32_t segment);
  // Records that a segment has on average when the index is full: how much memory is taken ahead for its footer.
  [[nodiscard]] std::size_t records_per_segment() const noexcept {
    return std::min<std::size_t>(index.records_max() / segments.count() + 1, volume.segment_pages());
  }
  // Notes that the record of this key in a segment of this generation is removed, for as long as that lives, and with
  // it what is older. `put_seq`: that of its successor, which must not end with it; 0: there is none.
  // While the tier is off removals_waiting_max wait; beyond that the segment is given up when it is back.
  void bury(const RecordKey& key, std::uint32_t segment, std::uint64_t generation, std::uint64_t put_seq = 0);
  // `record`, which replaces others or outdates copies of it, is on flash at `place`: as long as it is there nothing
  // older of its key is found, so it counts as their tombstone.
  void replaced_by(PoolRecord& record, const FlashPlace& place, const std::vector<ReplacedPlace>& outdated);
  // A copy that was only outdated, by one that may be lost: it has no tombstone any more. False: no room to note it.
  [[nodiscard]] bool note_stray(const Tombstone& outdated) {
    return strays.add(outdated.key.hash, {outdated.segment, outdated.generation});
  }
  // The frame with this tombstone was not written, or cannot be reached.
  void failed(const Tombstone& tombstone) {
    if (!health.on() && tombstones.kept(tombstone, [this](const Tombstone& t) { return note_stray(t); })) return;
    tombstones.failed(tombstone);
  }
  // The same record will not be on flash: what it replaces is removed.
  void bury_replaced(PoolRecord& record);
  // Submits `op`; its on_done comes from the loop in every case, also when the disk refuses it. Watches over its time,
  // counts its errors and bytes. Behind recovery a device that is off gets nothing: kIo, which counts as no error.
  void submit(io::DiskOp& op);
  // From now on nothing is written or discarded: such operations fail as kIo, and soon turn the tier off. For an
  // orderly end, behind which nobody asks for any.
  void end_writing() noexcept {
    ended_ = true;
    health.may_probe(false);
  }
  // Something is being written or discarded.
  [[nodiscard]] bool writing() const noexcept { return writing_ > 0; }
  // Whether with `more` bytes as much has been written as StoreOptions::drive_writes_per_day allows by now.
  [[nodiscard]] bool over_budget(std::uint64_t more = 0);

  io::Loop& loop;
  Log& log;
  StoreStats& stats;
  Namespaces& namespaces;
  Volume volume;
  FlashIndex index;
  Segments segments;
  FlashUsage usage;
  Tombstones tombstones;
  Strays strays;
  FlashHealth health;
  std::uint64_t put_seq_next = 1;
  std::uint64_t generation_next = 1;
  bool recovered = false;  // recovery has ended
  std::size_t removals_waiting_max = Tombstones::kWaitingMax;
  bool unlisted = false;  // some segment is not what a table of uses can tell of it
  // Of which recovery could not read all. A later opening may: removals and replacements name them.
  std::vector<ReplacedPlace> partly_read;

 private:
  // An operation that the device has: who it is reported to.
  struct Flight {
    Time expected{};
    bool hint = false;     // a discard: the device may refuse it without being at fault
    bool changes = false;  // a write or a discard
    bool refused = false;  // the tier is off: nobody's error
    std::move_only_function<void(Status)> on_done;
    void reset() noexcept { on_done = nullptr; }
  };
  static constexpr std::size_t kFlightsReserved = 256;  // as many as the disk takes at once

  [[nodiscard]] std::optional<Found> there(const std::optional<Found>& copy) const noexcept {
    return copy && !segments.lost(copy->place.segment, copy->place.offset) ? copy : std::nullopt;
  }
  void imply(const PoolRecord& record, const FlashPlace& place, const ReplacedPlace& old, bool outdates);
  void landed(Flight& flight, const Status& status);
  void fail_refused();

  bool ended_ = false;
  std::uint32_t writing_ = 0;
  policy::WriteBudget write_budget_;
  Time budget_at_;
  std::vector<std::vector<NamespaceHandle>> segment_namespaces_;
  HiddenHashes hidden_;
  Recycler<Flight> flights_;
  std::vector<std::pair<io::DiskOp*, Status>> refused_;
  io::Timer refused_timer_;
};

}  // namespace kvd::store
