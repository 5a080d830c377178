// DeviceSegments: the segments of one device: which of them are ready to be written, which goes next, and what a flush
// covers. Numbers are the store's (Segments), in [first, first + count), but where a header is to be written.
//
// No I/O here. One owner, no locking.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "policy/eviction.h"
#include "store/segments.h"

namespace kvd::store {

class DeviceSegments {
 public:
  // `policy` is asked for segments 0..count-1.
  DeviceSegments(Segments& all, std::uint32_t first, std::uint32_t count,
                 std::unique_ptr<policy::EvictionPolicy> policy);
  DeviceSegments(const DeviceSegments&) = delete;
  DeviceSegments& operator=(const DeviceSegments&) = delete;

  [[nodiscard]] std::uint32_t first() const noexcept { return first_; }
  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
  // Behind the last one.
  [[nodiscard]] std::uint32_t end() const noexcept { return first_ + count_; }

  // Is not chosen as a victim any more: it goes by start_eviction_of().
  void exclude(std::uint32_t segment) { policy_->remove(segment - first_); }
  void touch(std::uint32_t segment) { policy_->touch(segment - first_); }
  void demote(std::uint32_t segment) { policy_->demote(segment - first_); }
  // See Segments::seal().
  void sealed(std::uint32_t segment, bool next_victim);
  // The sealed segments that are the last to be given up, the very last first; at most `max`. As the device numbers
  // them. Valid until the next call.
  [[nodiscard]] std::span<const std::uint32_t> recent(std::size_t max);

  // The sealed segment to give up next becomes kEvicting; empty when there is none. `avoid_readers`: prefers one that
  // nobody reads.
  std::optional<std::uint32_t> start_eviction(bool avoid_readers);
  [[nodiscard]] bool has_victim() const { return victim().has_value(); }
  // A chosen segment, which must be kSealed, becomes kEvicting.
  void start_eviction_of(std::uint32_t segment);
  // A segment of this state, kFree or kDoubtful, becomes kPreparing; empty when there is none.
  std::optional<std::uint32_t> start_preparing(SegmentState from);

  // Free segments from `from` on, but for `lent`, are never used again: the store shrinks.
  void retire_from(std::uint32_t from, std::optional<std::uint32_t> lent);
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
  // A segment whose header is durable waits to be opened; ready ones are opened in order.
  void ready(std::uint32_t segment, std::uint64_t generation, std::uint64_t unopened = 0);
  // The last ready one is opened only with `last_too`: it is what lets tombstones be carried away when all others are
  // occupied, so a store never runs or crashes into a state in which no segment can be given up.
  std::optional<std::uint32_t> open_next(bool last_too);
  [[nodiscard]] std::uint32_t ready_count() const noexcept { return static_cast<std::uint32_t>(ready_.size()); }
  // Neither free, ready nor being made so.
  [[nodiscard]] std::uint32_t occupied() const noexcept;
  [[nodiscard]] std::uint32_t count_in(SegmentState state) const noexcept {
    return counts_[static_cast<std::size_t>(state)];
  }
  // One of this device changes its state (Segments::change).
  void counted(SegmentState from, SegmentState to) noexcept {
    --counts_[static_cast<std::size_t>(from)];
    ++counts_[static_cast<std::size_t>(to)];
  }
  // Whether the counts are what a look at all segments comes to: for tests.
  [[nodiscard]] bool counts_agree() const noexcept;

 private:
  // The first of the sealed segments, in the order in which they would be given up, for which `is` holds.
  [[nodiscard]] std::optional<std::uint32_t> first_victim(const std::function<bool(std::uint32_t)>& is) const;
  [[nodiscard]] std::optional<std::uint32_t> victim() const { return numbered(policy_->victim()); }
  // The store's number.
  [[nodiscard]] std::optional<std::uint32_t> numbered(std::optional<std::uint32_t> local) const noexcept {
    return local ? std::optional(first_ + *local) : std::nullopt;
  }

  Segments& all_;
  const std::uint32_t first_, count_;
  std::unique_ptr<policy::EvictionPolicy> policy_;
  std::array<std::uint32_t, kSegmentStates> counts_{};  // of segments in each state
  std::vector<std::uint32_t> ready_;                    // in order; two or so
  std::vector<std::uint32_t> recent_;
  std::vector<std::uint32_t> to_flush_;  // with frames that no flush has covered; the open one and a few
};

}  // namespace kvd::store
