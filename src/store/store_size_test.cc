// Tests of stores that are opened again with another size, on a simulated disk: they grow, shrink and always open.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

class SizeTest : public ::testing::Test {
 protected:
  void open() { ASSERT_TRUE(kit_.open()) << kit_.why; }

  StoreKit kit_;
};

TEST_F(SizeTest, GrowsAndKeepsItsContent) {
  open();
  for (std::uint64_t n = 0; n < 20; ++n) ASSERT_TRUE(kit_.put(n));
  kit_.close();
  kit_.options.flash_bytes += 8 * kit_.options.segment_bytes;
  open();
  for (std::uint64_t n = 0; n < 20; ++n) EXPECT_EQ(kit_.get(n), 1u);
  for (std::uint64_t n = 20; n < 60; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  EXPECT_EQ(kit_.stats().segments_evicted.value(), 0u);
}

TEST_F(SizeTest, KeepsItsSizeUnlessTold) {
  const auto size_of = [&](std::uint64_t segments) { return (4 << 20) + segments * kit_.options.segment_bytes; };
  kit_.options.flash_bytes_given = false;
  kit_.options.flash_bytes = size_of(8);
  open();
  EXPECT_EQ(kit_.drive().size(), size_of(8)) << "there was none: what is asked for is made";
  for (std::uint64_t n = 0; n < 24; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  for (const std::uint64_t segments : {4u, 16u}) {
    kit_.close();
    kit_.options.flash_bytes = size_of(segments);
    open();
    EXPECT_EQ(kit_.drive().size(), size_of(8));
    EXPECT_EQ(kit_.log.count("shrinking"), 0u);
    for (std::uint64_t n = 0; n < 24; ++n) EXPECT_EQ(kit_.get(n), 1u) << n;
  }
  kit_.close();
  kit_.options.flash_bytes_given = true;
  kit_.options.flash_bytes = size_of(4);
  open();
  EXPECT_EQ(kit_.log.count("shrinking from 8 to 4 segments"), 1u);
}

TEST_F(SizeTest, ShrinksAndKeepsWhatFitsAndRemovals) {
  kit_.options.flash_bytes = (4 << 20) + 16 * kit_.options.segment_bytes;
  open();
  for (std::uint64_t n = 0; n < 70; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  for (std::uint64_t n = 0; n < 4; ++n) EXPECT_TRUE(kit_.remove(n));
  kit_.close();
  kit_.options.flash_bytes = (4 << 20) + 6 * kit_.options.segment_bytes;
  open();
  std::uint64_t kept = 0;
  for (std::uint64_t n = 0; n < 70; ++n) kept += kit_.get(n) == 1 ? 1 : 0;
  EXPECT_GT(kept, 10u);
  EXPECT_LE(kept, 36u);
  for (std::uint64_t n = 0; n < 4; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kNone) << "removed";
  for (std::uint64_t n = 100; n < 160; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  ASSERT_TRUE(kit_.reopen());
  for (std::uint64_t n = 0; n < 4; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kNone) << "removed";
}

// Filled more than once around, the oldest segments may lie anywhere: in what stays and in what goes.
TEST_F(SizeTest, ShrinksWhereverTheOldestSegmentsLie) {
  for (std::uint64_t segments = 1; segments <= 8; ++segments) {
    SCOPED_TRACE(segments);
    StoreKit kit(segments);
    ASSERT_TRUE(kit.open()) << kit.why;
    std::uint64_t n = 0;
    while (kit.stats().segments_evicted.value() < segments) {
      const Status put = kit.put(n++, 1, AckLevel::kWritten);
      ASSERT_TRUE(put || put.error().code == Code::kBusy);
      kit.loop.run_for(Millis(2));
    }
    kit.close();
    kit.options.flash_bytes = (4 << 20) + 4 * kit.options.segment_bytes;
    ASSERT_TRUE(kit.open()) << kit.why;
    for (std::uint64_t m = n; m < n + 40; ++m) ASSERT_TRUE(kit.put(m, 1, AckLevel::kWritten));
  }
}

// The first to be given up among the segments that stay hold tombstones for another one that stays, and everything that
// is free goes: only what goes can take those tombstones.
TEST_F(SizeTest, ShrinksWhenNothingIsFreeAmongTheSegmentsThatStay) {
  open();
  for (std::uint64_t n = 0; n < 5; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));  // segment 0
  for (std::uint64_t segment = 1; segment < 5; ++segment) {
    for (std::uint64_t n = 0; n < 4; ++n) ASSERT_TRUE(kit_.put(10 * segment + n, 1, AckLevel::kWritten));
    EXPECT_TRUE(kit_.remove(segment - 1));
    kit_.loop.run_for(Millis(100));
    ASSERT_EQ(kit_.stats().tombstones.value(), segment);
    ASSERT_TRUE(kit_.put(10 * segment + 4, 1, AckLevel::kWritten));
    EXPECT_EQ(kit_.get(4), 1u) << "segment 0 is the one that is used";
  }
  ASSERT_TRUE(kit_.put(50, 1, AckLevel::kWritten));
  ASSERT_EQ(kit_.stats().segments_free.value(), 2u) << "6 and 7";
  kit_.close();
  kit_.options.flash_bytes = (4 << 20) + 4 * kit_.options.segment_bytes;
  open();
  EXPECT_EQ(kit_.lookup(4), Tier::kFlash) << "used most";
  for (std::uint64_t n = 0; n < 4; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kNone) << "removed";
  for (std::uint64_t n = 100; n < 104; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten)) << "there is room";
  kit_.kill();
  open();
  EXPECT_EQ(kit_.get(103), 1u);
  for (std::uint64_t n = 0; n < 4; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kNone) << "removed";
}

// A smaller index refuses segments, which are to go at once, and all of them may hold tombstones for others; those that
// are still free must take these. Where tombstones lie and what is used most differs by seed.
TEST(StoreSize, ASmallerStoreWithASmallerIndexAlwaysOpens) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    StoreKit kit(seed);
    kit.options.flash_bytes = (4 << 20) + 12 * kit.options.segment_bytes;
    ASSERT_TRUE(kit.open()) << kit.why;
    Random random(seed);
    const std::uint64_t puts = 50 + random.below(80);
    std::vector<bool> removed(puts);
    for (std::uint64_t n = 0; n < puts; ++n) {
      ASSERT_TRUE(kit.put(n, 1, AckLevel::kWritten));
      if (random.chance(1, 3)) {
        const std::uint64_t old = n - random.below(std::min<std::uint64_t>(n + 1, 14));
        kit.remove(old);
        removed[old] = true;
        kit.loop.run_for(Millis(60));
      }
      for (int i = 0; i < 3; ++i) kit.get(random.below(n + 1) / 4 * 2);
    }
    kit.close();
    kit.options.flash_bytes = (4 << 20) + (4 + random.below(6)) * kit.options.segment_bytes;
    kit.options.index_records_max = 12 + random.below(12);  // two segments and more
    ASSERT_TRUE(kit.open()) << kit.why;
    for (std::uint64_t n = 1'000; n < 1'020; ++n) ASSERT_TRUE(kit.put(n, 1, AckLevel::kWritten)) << n;
    kit.kill();
    ASSERT_TRUE(kit.open()) << kit.why;
    EXPECT_EQ(kit.get(1'019), 1U);
    for (std::uint64_t n = 0; n < puts; ++n)
      if (removed[n]) {
        EXPECT_EQ(kit.lookup(n), Tier::kNone) << n;
      }
  }
}

}  // namespace
}  // namespace kvd::store
