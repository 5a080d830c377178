// The simulator's one order of events: a winner tree with one leaf per instance, so that moving an instance's event
// takes one comparison without a branch per level. Ordered by time, then by instance: the order of equal times does not
// depend on history. 32 bytes an instance.
#pragma once

#include <cstdint>
#include <vector>

#include "model/linear_pass.h"

namespace kvd::sim {

using model::Picoseconds;

class EventTree {
 public:
  static constexpr Picoseconds kNever = INT64_MAX;

  // Instances 0..count-1, all at kNever. Requires count > 0.
  explicit EventTree(std::uint32_t count);

  [[nodiscard]] Picoseconds first_time() const noexcept { return nodes_[1].time; }
  [[nodiscard]] std::uint32_t first() const noexcept { return nodes_[1].instance; }

  // Moves an instance's event to `time` >= 0. What wins on the way up stays in registers, so that a level need not wait
  // for what the level below has stored, and masks choose it: no branch could foresee which of two comes first.
  void set(std::uint32_t instance, Picoseconds time) noexcept {
    Entry* const nodes = nodes_.data();
    std::uint32_t at = leaves_ + instance;
    nodes[at] = {time, instance};
    for (; at > 1; at /= 2) {
      const Entry other = nodes[at ^ 1];
      const auto is_right = static_cast<Picoseconds>(at & 1);  // the other one has the lower instances, and wins ties
      const Picoseconds wins = (other.time - is_right - time) >> 63;  // all ones or none
      time ^= (time ^ other.time) & wins;
      instance ^= (instance ^ other.instance) & static_cast<std::uint32_t>(wins);
      nodes[at / 2] = {time, instance};
    }
  }

 private:
  struct Entry {
    Picoseconds time = kNever;
    std::uint32_t instance = 0;
  };
  std::uint32_t leaves_ = 1;  // a power of two
  std::vector<Entry> nodes_;  // [1] is the first event, [leaves_ + i] instance i's
};

}  // namespace kvd::sim
