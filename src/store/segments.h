// Segments: the state of every segment of the flash log, of all devices: they are numbered through, device after
// device. What one device has of them, which are ready to be written and which goes next, is DeviceSegments.
//
//   kFree --Evictor prepares: header durable--> kReady --> kOpen --full--> kSealing --footer written--> kSealed
//     ^                                                                                                    |
//     +------ (failed header, recovery) ------- kEvicting <-----------------------------------------------+
//
// While a store recovers: kUnread --all that may contradict its records is known--> kRecovered --the end--> kSealed;
// an unread one that turns out to hold nothing becomes kFree. kDoubtful: its header cannot be read, and may be at a
// later start; a new header makes it kFree (FlashDevice::doubtful), or it is prepared like a free one when no other is
// free. Records of kOpen, kSealing, kSealed and kRecovered segments can be read. No I/O here. One owner, no locking.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "policy/eviction.h"

namespace kvd::store {

enum class SegmentState : std::uint8_t {
  kFree,
  kPreparing,
  kReady,
  kOpen,
  kSealing,
  kSealed,
  kEvicting,
  kRetired,
  kUnread,
  kRecovered,
  kDoubtful
};
inline constexpr std::size_t kSegmentStates = static_cast<std::size_t>(SegmentState::kDoubtful) + 1;

// Reads as a SegmentState; only Segments::change() writes it, which counts.
class HeldSegmentState {
 public:
  HeldSegmentState() = default;
  HeldSegmentState(const HeldSegmentState&) = default;
  HeldSegmentState& operator=(const HeldSegmentState&) = delete;
  operator SegmentState() const noexcept { return state_; }  // NOLINT(google-explicit-constructor)

 private:
  friend class Segments;
  SegmentState state_ = SegmentState::kFree;
};

// Where something lies in the log, in the order in which it was written.
struct LogPosition {
  std::uint64_t order = 0;  // Segment::order
  std::uint32_t page = 0;   // from the segment's start
  friend auto operator<=>(const LogPosition&, const LogPosition&) = default;
};

struct Segment {
  HeldSegmentState state;             // kFree at first
  std::uint8_t device = 0;            // that it lies on
  std::uint64_t generation = 0;       // of its header on flash; 0 = none
  std::uint64_t unopened = 0;         // the same (format.h: kUnopenedAt)
  std::uint64_t order = 0;            // grows with each segment that is opened; > 0 where there are records
  std::uint64_t next_generation = 0;  // of the header that is being written to it; 0 = none
  std::uint32_t readers = 0;          // loads that still have to read from it
  std::uint32_t removed = 0;          // tombstones that name it
  std::uint32_t tombstones = 0;       // that lie in it, also those that nothing needs any more
  // Pages up to which frames have completed in this opening, had when the flush that runs began, and are covered by a
  // flush that ended well.
  std::uint32_t completed_to = 0, flushing_to = 0, flushed_to = 0;
  std::uint32_t lost_from = UINT32_MAX;  // the device was away: what lies from this page on counts as not there
  bool doomed = false;                   // it holds removed records that no tombstone names: it is to be given up
  bool unflushed = false;  // a flush failed since it took frames: the device may have lost what it holds, and says
                           // so once only. It serves reads; `synced` takes another copy
};

class DeviceSegments;

class Segments {
 public:
  Segments();
  // Those of one device.
  Segments(std::uint32_t count, std::unique_ptr<policy::EvictionPolicy> policy);
  ~Segments();
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;

  // `count` segments more, those of the next device. Before anything else is asked.
  DeviceSegments& add_device(std::uint32_t count, std::unique_ptr<policy::EvictionPolicy> policy);
  [[nodiscard]] std::size_t devices() const noexcept { return devices_.size(); }
  [[nodiscard]] DeviceSegments& device(std::size_t number) const noexcept { return *devices_[number]; }

  [[nodiscard]] std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(segments_.size()); }
  [[nodiscard]] Segment& at(std::uint32_t segment) { return segments_[segment]; }
  [[nodiscard]] const Segment& at(std::uint32_t segment) const { return segments_[segment]; }

  // Whether records of this segment may be read.
  [[nodiscard]] bool readable(std::uint32_t segment) const noexcept {
    if (segment >= segments_.size()) return false;
    const SegmentState state = segments_[segment].state;
    return state == SegmentState::kOpen || state == SegmentState::kSealing || state == SegmentState::kSealed ||
           state == SegmentState::kRecovered;
  }
  // Whether a place noted earlier still holds what it held.
  [[nodiscard]] bool holds(std::uint32_t segment, std::uint64_t generation) const noexcept {
    return generation != 0 && readable(segment) && segments_[segment].generation == generation;
  }
  // Whether this place, as long as its segment is in this use, counts as not there: the device may have lost it.
  [[nodiscard]] bool lost(std::uint32_t segment, std::uint32_t page) const noexcept {
    return page >= segments_[segment].lost_from;
  }

  void touch(std::uint32_t segment);
  // A sealed one holds nothing that is worth keeping any more; another is left as it is.
  void demote(std::uint32_t segment);

  // Every change of a state, so that DeviceSegments::count_in() need not look for it.
  void change(std::uint32_t segment, SegmentState to) noexcept;
  // Recovery: kFree -> kUnread (or back), so that nobody takes it for free; kUnread -> kRecovered.
  void unread(std::uint32_t segment, bool is = true) {
    change(segment, is ? SegmentState::kUnread : SegmentState::kFree);
  }
  void recovered(std::uint32_t segment) { change(segment, SegmentState::kRecovered); }
  void doubt(std::uint32_t segment) { change(segment, SegmentState::kDoubtful); }
  // kOpen or kSealing or (recovery) kUnread or kRecovered -> kSealed. `next_victim`: holds little that is worth
  // keeping.
  void seal(std::uint32_t segment, bool next_victim = false);

  // The lowest generation of segments that may take frames behind the next one of this device that gets a header: those
  // that have, or are being given, the header with which they will be opened; of other devices also those that are
  // open. Headers that are in flight together may end, and so be opened, in another order than they were begun.
  [[nodiscard]] std::uint64_t unopened(std::uint8_t device) const noexcept;

  // Segment::order of one that is opened now, with a header of this generation.
  [[nodiscard]] std::uint64_t next_order(std::uint64_t generation) noexcept;

 private:
  [[nodiscard]] DeviceSegments& device_of(std::uint32_t segment) const noexcept {
    return *devices_[segments_[segment].device];
  }

  std::vector<Segment> segments_;
  std::vector<std::unique_ptr<DeviceSegments>> devices_;
  std::uint64_t order_ = 0;  // of the segment that was opened last
};

}  // namespace kvd::store
