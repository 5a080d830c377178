// The order of events against the smallest of all, and what comes first in a part of the instances.
#include "sim/event_tree.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvd::sim {
namespace {

// The first of the earliest times from `begin` to `end`, looked for one by one.
std::uint32_t earliest(const std::vector<Picoseconds>& times, std::size_t begin, std::size_t end) {
  const auto at = times.begin();
  return static_cast<std::uint32_t>(
      std::min_element(at + static_cast<std::ptrdiff_t>(begin), at + static_cast<std::ptrdiff_t>(end)) - at);
}

TEST(EventTree, FindsTheEarliestAndOfEqualTimesTheLowestInstance) {
  for (const std::uint32_t count : {1U, 2U, 3U, 8U, 13U}) {
    EventTree tree(count);
    std::vector<Picoseconds> times(count, EventTree::kNever);
    Random random(count);
    for (int i = 0; i < 2000; ++i) {
      const auto instance = static_cast<std::uint32_t>(random.below(count));
      // Few different times, so that many are equal; sometimes never, and 0.
      times[instance] = random.chance(1, 8) ? EventTree::kNever : static_cast<Picoseconds>(random.below(6));
      tree.set(instance, times[instance]);
      const std::uint32_t first = earliest(times, 0, count);
      ASSERT_EQ(tree.first(), first) << count << " instances, change " << i;
      ASSERT_EQ(tree.first_time(), times[first]);
    }
  }
}

}  // namespace
}  // namespace kvd::sim
