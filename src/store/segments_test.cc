// The states of segments: what is counted of them.
#include "store/segments.h"

#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "policy/eviction.h"
#include "store/device_segments.h"

namespace kvd::store {
namespace {

// Segments of two devices that go from state to state as recovery, log writers and evictors would have it.
class StatesWalk {
 public:
  explicit StatesWalk(std::uint64_t seed) : random_(seed) {
    for (const std::uint32_t count : {7U, 40U})
      all_.add_device(count, policy::make_eviction(policy::Eviction::kLru, count));
  }
  void recover() {
    for (std::uint32_t s = 0; s < all_.count(); ++s) {
      if (random_.chance(3, 4)) all_.unread(s);
      if (random_.chance(1, 4)) all_.doubt(s);
      check();
    }
    for (std::uint32_t s = 0; s < all_.count(); ++s) {
      if (all_.at(s).state != SegmentState::kUnread) continue;
      if (random_.chance(1, 4)) {
        all_.unread(s, false);
      } else {
        if (random_.chance(1, 2)) all_.recovered(s);
        check();
        all_.seal(s);
      }
      check();
    }
  }
  void step() {
    DeviceSegments& own = all_.device(random_.below(2));
    const std::uint32_t s = own.first() + static_cast<std::uint32_t>(random_.below(own.count()));
    switch (random_.below(9)) {
      case 0: own.start_preparing(random_.chance(1, 2) ? SegmentState::kFree : SegmentState::kDoubtful); break;
      case 1: own.open_next(random_.chance(1, 2)); break;
      case 2: own.start_eviction(random_.chance(1, 2)); break;
      case 3: own.retire_from(own.end() - 2, std::nullopt); break;
      case 4:
        if (own.ready_count() > 1 && all_.at(s).state == SegmentState::kReady && random_.chance(1, 8))
          own.retire_ready(s);
        break;
      default: on_the_way(own, s);
    }
    check();
  }
  // Segments were seen in it.
  [[nodiscard]] bool seen(SegmentState state) const { return seen_[static_cast<std::size_t>(state)]; }

 private:
  void on_the_way(DeviceSegments& own, std::uint32_t s) {
    const SegmentState state = all_.at(s).state;
    if (state == SegmentState::kOpen) all_.change(s, SegmentState::kSealing);
    if (state == SegmentState::kSealing) all_.seal(s, random_.chance(1, 4));
    if (state != SegmentState::kPreparing && state != SegmentState::kEvicting) return;
    if (random_.chance(1, 4)) {
      all_.change(s, SegmentState::kFree);
    } else {
      own.ready(s, ++generation_);
    }
  }
  void check() {
    std::uint32_t all = 0;
    for (std::size_t device = 0; device < all_.devices(); ++device) {
      const DeviceSegments& own = all_.device(device);
      ASSERT_TRUE(own.counts_agree());
      std::uint32_t occupied = 0;
      for (std::uint32_t s = own.first(); s < own.end(); ++s) {
        const SegmentState state = all_.at(s).state;
        seen_[static_cast<std::size_t>(state)] = true;
        occupied += all_.readable(s) || state == SegmentState::kUnread || state == SegmentState::kDoubtful ? 1 : 0;
      }
      ASSERT_EQ(own.occupied(), occupied);
      for (std::size_t state = 0; state < kSegmentStates; ++state)
        all += own.count_in(static_cast<SegmentState>(state));
    }
    ASSERT_EQ(all, all_.count());
  }

  Random random_;
  Segments all_;
  std::uint64_t generation_ = 0;
  std::vector<bool> seen_ = std::vector<bool>(kSegmentStates);
};

TEST(Segments, CountsAgreeWithALookAtAllOfThem) {
  std::vector<bool> seen(kSegmentStates);
  for (std::uint64_t seed = 1; seed <= 20 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    StatesWalk walk(seed);
    walk.recover();
    for (int i = 0; i < 2'000 && !::testing::Test::HasFailure(); ++i) walk.step();
    for (std::size_t state = 0; state < kSegmentStates; ++state)
      if (walk.seen(static_cast<SegmentState>(state))) seen[state] = true;
  }
  EXPECT_EQ(seen, std::vector<bool>(kSegmentStates, true)) << "a state that the walk did not come to";
}

}  // namespace
}  // namespace kvd::store
