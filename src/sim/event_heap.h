// The simulator's one order of events: a flat 4-ary heap with one entry per instance, which can move in both
// directions. Ordered by time, then by instance, so that the order of equal times does not depend on history.
#pragma once

#include <cstdint>
#include <vector>

#include "model/linear_pass.h"

namespace kvd::sim {

using model::Picoseconds;

class EventHeap {
 public:
  static constexpr Picoseconds kNever = INT64_MAX;

  // Instances 0..count-1, all at kNever.
  explicit EventHeap(std::uint32_t count);

  [[nodiscard]] Picoseconds first_time() const noexcept { return heap_[0].time; }
  [[nodiscard]] std::uint32_t first() const noexcept { return heap_[0].instance; }
  // Moves an instance's event to `time`.
  void set(std::uint32_t instance, Picoseconds time) noexcept;

 private:
  struct Entry {
    Picoseconds time;
    std::uint32_t instance;
    [[nodiscard]] bool before(const Entry& o) const noexcept {
      return time != o.time ? time < o.time : instance < o.instance;
    }
  };
  void place(std::uint32_t at, const Entry& entry) noexcept {
    heap_[at] = entry;
    where_[entry.instance] = at;
  }

  std::vector<Entry> heap_;
  std::vector<std::uint32_t> where_;
};

}  // namespace kvd::sim
