// Segments: the state of every segment of the flash log, which of them are ready to be written, and which goes next.
//
//   kFree --Evictor prepares: header durable--> kReady --> kOpen --full--> kSealing --footer written--> kSealed
//     ^                                                                                                    |
//     +------ (failed header, recovery) ------- kEvicting <-----------------------------------------------+
//
// While a store recovers: kUnread --all that may contradict its records is known--> kRecovered --the end--> kSealed;
// an unread one that turns out to hold nothing becomes kFree.
// Records of kOpen, kSealing, kSealed and kRecovered segments can be read. No I/O here. One owner, no locking.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
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
  kRecovered
};

// Where something lies in the log, in the order in which it was written.
struct LogPosition {
  std::uint64_t order = 0;  // Segment::order
  std::uint32_t page = 0;   // from the segment's start
  friend auto operator<=>(const LogPosition&, const LogPosition&) = default;
};

struct Segment {
  SegmentState state = SegmentState::kFree;
  std::uint64_t generation = 0;  // of its header on flash; 0 = none
  std::uint64_t unopened = 0;    // the same (format.h: kUnopenedAt)
  std::uint64_t order = 0;       // grows with each segment that is opened; > 0 where there are records
  std::uint32_t readers = 0;     // loads that still have to read from it
  std::uint32_t removed = 0;     // tombstones that name it
  // Pages up to which frames have completed in this opening, had when the flush that runs began, and are covered by a
  // flush that ended well.
  std::uint32_t completed_to = 0, flushing_to = 0, flushed_to = 0;
  std::uint32_t lost_from = UINT32_MAX;  // the device was away: what lies from this page on counts as not there
  bool doomed = false;                   // it holds removed records that no tombstone names: it is to be given up
  bool unflushed = false;  // a flush failed since it took frames: the device may have lost what it holds, and says
                           // so once only. It serves reads; `synced` takes another copy
};

class Segments {
 public:
  Segments(std::uint32_t count, std::unique_ptr<policy::EvictionPolicy> policy)
      : segments_(count), policy_(std::move(policy)) {
    ready_.reserve(count);
    recent_.reserve(count);
    to_flush_.reserve(count);
  }

  [[nodiscard]] std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(segments_.size()); }
  [[nodiscard]] Segment& at(std::uint32_t segment) { return segments_[segment]; }
  [[nodiscard]] const Segment& at(std::uint32_t segment) const { return segments_[segment]; }

  // Whether records of this segment may be read.
  [[nodiscard]] bool readable(std::uint32_t segment) const noexcept;
  // Whether a place noted earlier still holds what it held.
  [[nodiscard]] bool holds(std::uint32_t segment, std::uint64_t generation) const noexcept {
    return generation != 0 && readable(segment) && segments_[segment].generation == generation;
  }

  // Is not chosen as a victim any more: it goes by start_eviction_of().
  void exclude(std::uint32_t segment) { policy_->remove(segment); }
  void touch(std::uint32_t segment) { policy_->touch(segment); }
  // A sealed one holds nothing that is worth keeping any more; another is left as it is.
  void demote(std::uint32_t segment) { policy_->demote(segment); }
  // The sealed segments that are the last to be given up, the very last first; at most `max`. Valid until the next
  // call.
  [[nodiscard]] std::span<const std::uint32_t> recent(std::size_t max);

  // Recovery: kFree -> kUnread (or back), so that nobody takes it for free; kUnread -> kRecovered.
  void unread(std::uint32_t segment, bool is = true) {
    segments_[segment].state = is ? SegmentState::kUnread : SegmentState::kFree;
  }
  void recovered(std::uint32_t segment) { segments_[segment].state = SegmentState::kRecovered; }
  // kOpen or kSealing or (recovery) kUnread or kRecovered -> kSealed. `next_victim`: holds little that is worth
  // keeping.
  void seal(std::uint32_t segment, bool next_victim = false);
  // The sealed segment to give up next becomes kEvicting; empty when there is none. `avoid_readers`: prefers one that
  // nobody reads.
  std::optional<std::uint32_t> start_eviction(bool avoid_readers);
  // The first of the sealed segments, in the order in which they would be given up, for which `is` holds.
  [[nodiscard]] std::optional<std::uint32_t> first_victim(const std::function<bool(std::uint32_t)>& is) const;
  // A chosen segment, which must be kSealed, becomes kEvicting.
  void start_eviction_of(std::uint32_t segment);
  // A kFree segment becomes kPreparing; empty when there is none.
  std::optional<std::uint32_t> start_preparing();

  // Free segments from `first` on, but for `lent`, are never used again: the store shrinks.
  void retire_from(std::uint32_t first, std::optional<std::uint32_t> lent);
  // The same for one that is kReady and another one is, too.
  void retire_ready(std::uint32_t segment);

  // Frames of a segment have completed up to `page`.
  void completed(std::uint32_t segment, std::uint32_t page);
  // A flush begins. It has ended well: what had completed when it began is durable, unless one has failed before.
  void flush_begins();
  void flushed();
  // A flush has failed: see Segment::unflushed.
  void flush_failed();
  // The device went off: what no flush has covered may be lost, also what is still on its way (Segment::lost_from).
  void lose_unflushed();
  // Whether this place, as long as its segment is in this use, counts as not there for that.
  [[nodiscard]] bool lost(std::uint32_t segment, std::uint32_t page) const noexcept {
    return page >= segments_[segment].lost_from;
  }
  // A segment whose header is durable waits to be opened; ready ones are opened in order.
  void ready(std::uint32_t segment, std::uint64_t generation, std::uint64_t unopened = 0);
  // The last ready one is opened only with `last_too`: it is what lets tombstones be carried away when all others are
  // occupied, so a store never runs or crashes into a state in which no segment can be given up.
  std::optional<std::uint32_t> open_next(bool last_too);
  [[nodiscard]] std::uint32_t ready_count() const noexcept { return static_cast<std::uint32_t>(ready_.size()); }
  // The lowest generation of ready ones; the highest number when there are none.
  [[nodiscard]] std::uint64_t ready_generation_min() const noexcept;
  // Neither free, ready nor being made so.
  [[nodiscard]] std::uint32_t occupied() const noexcept;
  [[nodiscard]] std::uint32_t count_in(SegmentState state) const noexcept;

 private:
  std::vector<Segment> segments_;
  std::unique_ptr<policy::EvictionPolicy> policy_;
  std::vector<std::uint32_t> ready_;  // in order; two or so
  std::vector<std::uint32_t> recent_;
  std::vector<std::uint32_t> to_flush_;  // with frames that no flush has covered; the open one and a few
  std::uint64_t order_ = 0;              // of the segment that was opened last
};

}  // namespace kvd::store
