// FlashDevice: what one device of the flash tier has: its file, its part of the segments, its tombstones, its breaker,
// its write budget, and what is submitted to it. What of it writes, flushes and gives up is its DeviceLog.
//
// A device is right alone: nothing on it names a segment of another. In memory segments are numbered through all
// devices (Segments); on flash each device counts from 0, which is what local() gives. Owned by Flash. Everything runs
// on the store's loop.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "io/loop.h"
#include "policy/write_budget.h"
#include "store/device_segments.h"
#include "store/flash_health.h"
#include "store/recycler.h"
#include "store/segments.h"
#include "store/store.h"
#include "store/strays.h"
#include "store/tombstones.h"
#include "store/volume.h"

namespace kvd::store {

// A device as it is opened.
struct OpenedDevice {
  std::string dir;
  std::string name;  // for the log
  Volume volume;
  policy::WriteBudget write_budget;
};

class FlashDevice {
 public:
  // Takes its segments from `all`, as the next device; they are numbered in the order of construction.
  FlashDevice(io::Loop& loop, Log& log, StoreStats& sums, Segments& all, OpenedDevice opened,
              policy::Eviction eviction);
  FlashDevice(const FlashDevice&) = delete;
  FlashDevice& operator=(const FlashDevice&) = delete;

  // The number that the device has for a segment of the store, and the other way round.
  [[nodiscard]] std::uint32_t local(std::uint32_t segment) const noexcept { return segment - segments.first(); }
  [[nodiscard]] std::uint32_t numbered(std::uint32_t local_segment) const noexcept {
    return segments.first() + local_segment;
  }
  // Where a segment of the store lies in the file.
  [[nodiscard]] std::uint64_t offset_of(std::uint32_t segment, std::uint32_t page = 0) const noexcept {
    return volume.offset_of(local(segment), page);
  }

  // Submits `op`; its on_done comes from the loop in every case, also when the disk refuses it. Watches over its time,
  // counts its errors and bytes. Behind recovery a device that is off gets nothing: kIo, which counts as no error.
  void submit(io::DiskOp& op);
  // From now on nothing is written or discarded: such operations fail as kIo, and soon turn the device off. For an
  // orderly end, behind which nobody asks for any.
  void end_writing() noexcept {
    ended_ = true;
    health.may_probe(false);
  }
  // Something is being written or discarded.
  [[nodiscard]] bool writing() const noexcept { return writing_ > 0; }
  // Whether with `more` bytes as much has been written as StoreOptions::drive_writes_per_day allows by now.
  [[nodiscard]] bool over_budget(std::uint64_t more = 0);

  // A copy that was only outdated, by one that may be lost: it has no tombstone any more. False: no room to note it.
  [[nodiscard]] bool note_stray(const Tombstone& outdated) {
    return strays.add(outdated.key.hash, {outdated.segment, outdated.generation});
  }
  // The frame with this tombstone was not written, or cannot be reached.
  void failed(const Tombstone& tombstone) {
    if (!health.on() && tombstones.kept(tombstone, [this](const Tombstone& t) { return note_stray(t); })) return;
    tombstones.failed(tombstone);
  }

  // What changes without an operation: sizes, free segments, what waits.
  void update_gauges();

  const std::string dir;
  DeviceStats stats;
  Volume volume;
  DeviceSegments& segments;
  Tombstones tombstones;
  Strays strays;
  FlashHealth health;
  bool recovered = false;  // recovery has ended
  bool unknown = false;    // it went off before that: what it holds was not read, and may be found at the next start
  bool unlisted = false;   // some segment is not what a table of uses can tell of it
  // Segments whose headers could not be read at the start (kDoubtful) and have no new ones yet: see Flash::doubts_end.
  std::uint32_t doubtful = 0;
  // Others of which a later start may find more than the index of this one has, the same: recovery could not read all
  // of them, or did not take all in. The one that was begun first comes first.
  std::vector<std::uint32_t> half_known;
  // It may hold older copies of anything.
  [[nodiscard]] bool in_doubt() const noexcept { return doubtful > 0 || !half_known.empty(); }

 private:
  // An operation that the device has: who it is reported to.
  struct Flight {
    FlashHealth::Operation watched;
    bool hint = false;     // a discard: the device may refuse it without being at fault
    bool changes = false;  // a write or a discard
    bool refused = false;  // the device is off: nobody's error
    std::move_only_function<void(Status)> on_done;
    void reset() noexcept { on_done = nullptr; }
  };
  static constexpr std::size_t kFlightsReserved = 256;  // as many as the disk takes at once

  void landed(Flight& flight, const Status& status);
  void fail_refused();

  io::Loop& loop_;
  StoreStats& sums_;
  bool ended_ = false;
  std::uint32_t writing_ = 0;
  policy::WriteBudget write_budget_;
  Time budget_at_;
  Recycler<Flight> flights_;
  std::vector<std::pair<io::DiskOp*, Status>> refused_;
  io::Timer refused_timer_;
};

}  // namespace kvd::store
