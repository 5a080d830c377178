// Tombstones: removals that must be on flash as long as the removed record's segment is.
//
// A tombstone is pending until a frame with it is written, unflushed until a flush of the device that began later has
// succeeded, then lives in the frame's segment (its holder). When a flush fails, what is unflushed becomes pending
// again: the device may have lost it and says so once. A tombstone dies with the segment it names. When its holder is
// given up first it becomes pending again and is durable elsewhere before the holder is overwritten. All of them are
// kept in memory: about 90 bytes each, at most about kLiveMax (beyond that the segment with the most of them is given
// up, which ends them), and while segments of unknown content are given up one for each page of these (Evictor).
// On flash lie more, as one stays where it was written when nothing needs it any more, and the next start reads all of
// them into memory. So there is a bound on these spent ones, too, beyond which the segments that hold most of them are
// given up, and one on what a segment takes.
// One for a device: a tombstone lies on the device of the segment that it names. One owner, no locking, no I/O.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "store/device_segments.h"
#include "store/namespaces.h"
#include "store/segments.h"
#include "store/waiting_hashes.h"

namespace kvd::store {

struct Tombstone {
  RecordKey key;
  std::uint64_t put_seq = 0;
  std::uint32_t segment = 0;  // that holds the removed record
  std::uint64_t generation = 0;
  std::uint32_t holder = 0;             // segment that holds this tombstone
  std::uint64_t holder_generation = 0;  // 0 = not written
  std::uint32_t from = UINT32_MAX;      // segment being given up that it is carried away from
  bool outdates = false;                // implied by a newer copy of the record, which was neither removed nor replaced
  bool awaited = false;                 // counts in Tombstones::written_before()
  // Not durable yet, and a record in this segment of another device says the same: Tombstones::told_by().
  std::uint32_t told_by = UINT32_MAX;
};

class Tombstones {
 public:
  static constexpr std::size_t kLiveMax = 262'144;  // 22 MiB; removals are rare and mostly of whole segments

  static constexpr std::size_t kWaitingMax = 65'536;  // 6 MB: that wait for a device that is off

  // Spent ones in sealed segments: as many, or one for so many records that the index has room for, if that is more. At
  // 96 bytes each, and half as much again for vectors that grow, a start takes 150 MB for them, or half of what the
  // index has. A segment that is given up for them has then one for each sixteen records of an average one, or more.
  static constexpr std::size_t kSpentMax = 1'048'576;
  static constexpr std::size_t kRecordsToSpent = 16;
  // What a segment takes of that bound before the next one is opened: a start behind a kill has those in segments that
  // are open, or were being given up, besides. One is a descriptor of 48 bytes.
  static constexpr std::size_t kSpentToSegment = 4;

  // Of those segments of a store that one device has: all that a tombstone names, and those that hold it.
  Tombstones(Segments& segments, const DeviceSegments& own) : segments_(segments), own_(own), carried_(own.end(), 0) {}

  // Takes the memory with which may_wait() tells one record from another: 1 MiB. Where there are other devices, before
  // anything is added.
  void tell_apart() { waiting_hashes_.reserve(); }

  // A record of a live (or just being given up) segment was removed. Written with the next frame.
  void add(const Tombstone& tombstone);
  // One that needs no writing, because a record that lies in `holder` says the same: it replaces the record that the
  // tombstone names. When `holder` is given up it is carried like any other.
  void imply(const Tombstone& tombstone, std::uint32_t holder, std::uint64_t holder_generation);
  // A removal with this put_seq gets no tombstone: it holds when `segment`, which is being given up, is forgotten.
  void await_end(std::uint32_t segment, std::uint64_t put_seq);
  [[nodiscard]] bool awaits_end(std::uint32_t segment) const { return ends_.contains(segment); }
  // `count` lie in `holder`, or may: a frame with them was written, or failed, or recovery found them there.
  void lie_in(std::uint32_t holder, std::size_t count);
  // One that recovery found; its holder is filled in. Opening the volume has flushed it.
  void restore(const Tombstone& tombstone);

  [[nodiscard]] bool pending() const noexcept { return !pending_.empty() || !carried_pending_.empty(); }
  // Those that are carried come first: others may have to wait for them (Demoter::fill).
  [[nodiscard]] bool next_is_carried() const noexcept { return !carried_pending_.empty(); }
  [[nodiscard]] const Tombstone& next_pending() const {
    return next_is_carried() ? carried_pending_.front() : pending_.front();
  }
  void take_pending();
  // Whether all that were added with a lower put_seq are on flash or have nothing to name any more, and the segments
  // that await_end() named before are forgotten.
  [[nodiscard]] bool written_before(std::uint64_t put_seq) const {
    return unwritten_.empty() || *unwritten_.begin() >= put_seq;
  }
  // Whether one of a record with this hash was added that is nowhere on flash yet, in a frame or not, or removals wait
  // for the end of a segment that may be of any. In constant time.
  [[nodiscard]] bool may_wait(std::uint64_t hash) const { return !ends_.empty() || waiting_hashes_.contains(hash); }
  // What became of a taken one.
  void written(Tombstone tombstone, std::uint32_t holder, std::uint64_t holder_generation);
  void failed(const Tombstone& tombstone);

  // A flush of the device begins. It has ended: what was written before it began is durable, or nothing is for sure.
  void flush_begins() noexcept { flushing_ = order_next_; }
  void flushed();
  void flush_failed();
  // The device went off, and may have lost what no flush has covered: as a failed flush, but of a copy that is only
  // outdated `keep` is asked whether it takes care of that: then it has no tombstone any more, as its successor may be
  // gone. What was in a frame then is told when that ends: whether it was kept so.
  using Keep = std::function<bool(const Tombstone&)>;
  void device_off(const Keep& keep);
  bool kept(const Tombstone& tombstone, const Keep& keep);

  // `segment` is being given up: what it holds for other segments becomes pending. carried() counts those of them that
  // are not durable elsewhere yet; carrying() tells whether any of all segments is not even written.
  void carry_from(std::uint32_t segment);
  // Which segments hold any that would have to be carried, as the device numbers them. Looks at all of them.
  [[nodiscard]] std::vector<bool> holders_for_others() const;
  [[nodiscard]] std::uint32_t carried(std::uint32_t segment) const {
    return segment < carried_.size() ? carried_[segment] : 0;
  }
  [[nodiscard]] bool carrying() const noexcept { return carry_pending_ > 0; }
  // How many are not durable yet of which only records in `segment`, of another device, tell: it must not be
  // overwritten before they are. hurry(): it is kEvicting, and they are written like those that are carried, as are
  // all that wait for it from then on.
  [[nodiscard]] std::uint32_t told_by(std::uint32_t segment) const;
  void hurry(std::uint32_t segment);
  // `segment` holds nothing any more: tombstones that name it have done their work.
  void forget(std::uint32_t segment);

  // To be written.
  [[nodiscard]] std::size_t waiting() const noexcept { return pending_.size() + carried_pending_.size(); }
  [[nodiscard]] std::size_t size() const noexcept { return live_.size() + unflushed_.size() + waiting(); }
  // The segment that most tombstones name, when there are more than this device's share of kLiveMax; otherwise nothing.
  [[nodiscard]] std::optional<std::uint32_t> overfull() const;
  // That lie on the device, needed or not.
  [[nodiscard]] std::uint64_t on_flash() const noexcept { return on_flash_; }
  // Whether the part of this device's share of `max` that one segment takes lies in this one.
  [[nodiscard]] bool fills(std::uint32_t segment, std::uint64_t max) const;
  // The sealed segment with the most of them that need not be carried, when all sealed ones together have more than
  // this device's share of `max`.
  [[nodiscard]] std::optional<std::uint32_t> most_spent(std::uint64_t max) const;

 private:
  [[nodiscard]] std::uint64_t share_of(std::uint64_t max) const noexcept {
    return max * own_.count() / segments_.count();
  }
  [[nodiscard]] bool obsolete(const Tombstone& tombstone) const;
  [[nodiscard]] bool carries(const Tombstone& tombstone, std::uint32_t segment) const;
  void written_or_gone(Tombstone& tombstone);
  void done_carrying(Tombstone& tombstone);
  void done_telling(Tombstone& tombstone);
  [[nodiscard]] std::deque<Tombstone>& queue_for(Tombstone& tombstone);
  [[nodiscard]] std::uint32_t& carried_of(std::uint32_t segment) {
    if (segment >= carried_.size()) carried_.resize(segments_.count());
    return carried_[segment];
  }

  Segments& segments_;
  const DeviceSegments& own_;
  struct Unflushed {
    Tombstone tombstone;
    std::uint64_t order = 0;  // in which they were written
  };
  std::vector<Tombstone> live_;
  std::vector<Unflushed> unflushed_;  // in order
  std::deque<Tombstone> pending_;
  std::deque<Tombstone> carried_pending_;
  // put_seq of those that are nowhere on flash yet, and of ends_. Several have one where a record outdates several.
  std::multiset<std::uint64_t> unwritten_;
  WaitingHashes waiting_hashes_;                 // of those, without ends_
  std::map<std::uint32_t, std::uint64_t> ends_;  // put_seq of the first removal that waits for the end of a segment
  std::vector<std::uint32_t> carried_;           // by segment of the store
  std::unordered_map<std::uint32_t, std::uint32_t> told_;  // told_by() where it is not 0
  std::uint64_t carry_pending_ = 0;                        // pending or in a frame, and carried
  std::uint64_t order_next_ = 0;
  std::uint64_t on_flash_ = 0;
  std::uint64_t flushing_ = 0;  // the flush that runs covers lower orders
};

}  // namespace kvd::store
