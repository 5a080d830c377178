// What is counted of a tenant on flash, and what it gives up first.
#include "store/flash_usage.h"

#include <algorithm>
#include <deque>
#include <string>

#include <gtest/gtest.h>

#include "policy/eviction.h"
#include "store/device_segments.h"

namespace kvd::store {
namespace {

constexpr std::uint32_t kSegmentPages = 64;  // of a segment: 4 for each stretch

class FlashUsageTest : public ::testing::Test {
 protected:
  // Segments 0 to 2 are opened in this order, which is not that of their generations.
  FlashUsageTest() {
    for (std::uint32_t segment = 0; segment < 3; ++segment) {
      segments_.device(0).ready(segment, 30 - segment);
      EXPECT_EQ(segments_.device(0).open_next(true), segment);
    }
  }
  static void bound(TenantSpace& tenant, std::uint64_t pages) { tenant.quota.flash_bytes = pages * kPageBytes; }
  static std::uint64_t pages(const TenantSpace& tenant) { return tenant.flash_bytes.value() / kPageBytes; }

  TenantSpace a_{"a"}, b_{"b"};
  Segments segments_{4, policy::make_eviction(policy::Eviction::kLru, 4)};
  FlashUsage usage_{segments_, kSegmentPages};
};

TEST_F(FlashUsageTest, CountsWhatMayBeFound) {
  usage_.add(a_, 0, 1, 9);
  usage_.add(a_, 1, 1, 9);
  usage_.add(b_, 0, 10, 9);
  EXPECT_EQ(pages(a_), 18U);
  usage_.remove(a_, 1, 1, 9);
  usage_.remove(b_, 2, 1, 9);  // nothing of it is there
  EXPECT_EQ(pages(a_), 9U);
  usage_.forget(0);
  usage_.remove(a_, 0, 1, 9);
  EXPECT_EQ(pages(a_), 0U);
  EXPECT_EQ(pages(b_), 0U);
}

TEST_F(FlashUsageTest, WhatWasWrittenFirstIsGivenUpFirst) {
  usage_.add(a_, 0, 1, 9);
  usage_.add(b_, 0, 10, 9);
  usage_.add(a_, 1, 1, 9);
  bound(a_, 10);
  usage_.make_room(a_, 0);
  EXPECT_TRUE(usage_.given_up(a_, 0, 1));
  EXPECT_FALSE(usage_.given_up(b_, 0, 10));
  EXPECT_FALSE(usage_.given_up(a_, 1, 1));
  EXPECT_EQ(pages(a_), 9U);
  EXPECT_EQ(pages(b_), 9U);
  usage_.remove(a_, 0, 1, 9);
  EXPECT_EQ(pages(a_), 9U) << "it was not counted any more";
}

TEST_F(FlashUsageTest, WhereTheTenantWritesOnItsNextRecordIsNotGivenUp) {
  bound(a_, 10);
  usage_.add(a_, 0, 1, 2);
  usage_.make_room(a_, 9 * kPageBytes);
  EXPECT_TRUE(usage_.given_up(a_, 0, 1));
  usage_.add(a_, 0, 3, 9);  // of the same stretch
  EXPECT_FALSE(usage_.given_up(a_, 0, 3));
  EXPECT_EQ(pages(a_), 9U);
}

TEST_F(FlashUsageTest, ASegmentOfWhichAllWasGivenUpGoesNext) {
  usage_.add(b_, 0, 1, 9);
  usage_.add(a_, 1, 1, 9);
  usage_.add(a_, 2, 1, 9);
  segments_.seal(0);
  segments_.seal(1);
  bound(a_, 0);
  usage_.make_room(a_, 0);
  EXPECT_FALSE(usage_.spent(0));
  EXPECT_TRUE(usage_.spent(1));
  EXPECT_TRUE(usage_.spent(2)) << "for when it is sealed";
  EXPECT_EQ(segments_.device(0).start_eviction(false), 1U);
  usage_.add(b_, 2, 10, 9);
  EXPECT_FALSE(usage_.spent(2));
  usage_.forget(1);
  EXPECT_FALSE(usage_.spent(1));
}

// With one share in each segment and no more.
class FlashUsageBeyondItsMemory : public FlashUsageTest {
 protected:
  FlashUsageBeyondItsMemory() {
    for (std::uint32_t segment = 0; segment < 3; ++segment) few_.add(b_, segment, 1, 9);
  }
  FlashUsage few_{segments_, kSegmentPages, 0};
};

TEST_F(FlashUsageBeyondItsMemory, WhatHasNoShareIsCounted) {
  for (std::uint32_t segment = 0; segment < 3; ++segment) few_.add(a_, segment, 10, 5);
  EXPECT_EQ(pages(a_), 15U);
  EXPECT_EQ(pages(b_), 27U);
  few_.remove(a_, 1, 10, 5);
  few_.remove(b_, 1, 1, 9);
  EXPECT_EQ(pages(a_), 10U);
  EXPECT_EQ(pages(b_), 18U);
}

TEST_F(FlashUsageBeyondItsMemory, TheOldestOfItIsGivenUpFirst) {
  for (std::uint32_t segment = 0; segment < 3; ++segment) few_.add(a_, segment, 10, 5);
  bound(a_, 11);
  EXPECT_TRUE(few_.make_room(a_, 0));
  EXPECT_EQ(pages(a_), 10U);
  EXPECT_TRUE(few_.given_up(a_, 0, 10));
  EXPECT_FALSE(few_.given_up(a_, 1, 10));
  EXPECT_FALSE(few_.given_up(b_, 0, 1));
  few_.remove(a_, 0, 10, 5);
  EXPECT_EQ(pages(a_), 10U) << "it was not counted any more";
  bound(a_, 0);
  few_.make_room(a_, 0);
  EXPECT_EQ(pages(a_), 0U);
  EXPECT_TRUE(few_.given_up(a_, 2, 10));
  few_.add(a_, 2, 15, 5);
  EXPECT_EQ(pages(a_), 5U) << "what is written behind it counts";
  EXPECT_FALSE(few_.spent(0)) << "what is not known there may be there";
}

TEST_F(FlashUsageBeyondItsMemory, AShareThatHasBecomeFreeIsTaken) {
  few_.add(a_, 0, 10, 5);
  few_.forget(1);
  few_.add(a_, 1, 1, 5);  // the place is free now
  few_.add(a_, 0, 20, 5);
  EXPECT_EQ(pages(a_), 15U);
  few_.remove(a_, 1, 1, 5);
  few_.remove(a_, 0, 10, 5);
  few_.remove(a_, 0, 20, 5);
  EXPECT_EQ(pages(a_), 0U);
}

// It is not known whose they were: they count until nothing of that part of the log is left.
TEST_F(FlashUsageBeyondItsMemory, WhatGoesWithItsSegmentCountsForLongerNeverForShorter) {
  for (std::uint32_t segment = 0; segment < 3; ++segment) few_.add(a_, segment, 10, 5);
  few_.forget(0);
  EXPECT_EQ(pages(a_), 15U);
  bound(a_, 11);
  few_.make_room(a_, 0);
  EXPECT_EQ(pages(a_), 10U) << "looked at when it matters";
  EXPECT_FALSE(few_.given_up(a_, 1, 10)) << "nothing had to go for that";
  few_.forget(2);
  few_.forget(1);
  bound(a_, 0);
  few_.make_room(a_, 0);
  EXPECT_EQ(pages(a_), 0U);
  EXPECT_EQ(a_.flash_given_up.value(), 0U);
}

TEST_F(FlashUsageBeyondItsMemory, WhatHasGoneIsNotCountedTogetherWithWhatIsWrittenNow) {
  few_.add(a_, 0, 10, 5);
  few_.add(a_, 1, 10, 5);
  few_.forget(0);
  few_.add(a_, 2, 10, 5);
  EXPECT_EQ(pages(a_), 10U) << "also of a tenant without a quota";
}

TEST(CoarseUsage, NeighboursWithTheFewestPagesAreCountedTogether) {
  constexpr std::uint64_t kSegments = 1000;
  for (const bool newest_first : {false, true}) {
    CoarseUsage usage;
    for (std::uint64_t i = 1; i <= kSegments; ++i) usage.add(newest_first ? kSegments + 1 - i : i, 10);
    std::size_t parts = 0;
    std::uint64_t last = 0;
    for (; !usage.empty(); ++parts) {
      const CoarseUsage::Part part = usage.take_oldest();
      EXPECT_EQ(part.first, last + 1);
      EXPECT_EQ(part.pages, (part.last - last) * 10);
      EXPECT_LE(part.pages, kSegments * 10 / 4) << "so that one is not all there is";
      last = part.last;
    }
    EXPECT_EQ(last, kSegments);
    EXPECT_EQ(parts, CoarseUsage::kParts);
  }
}

// With one floor what is written to the segment that was opened first would be given up at birth.
TEST(FlashUsageOnDevices, AFloorOnOneDeviceSparesWhatIsWrittenOnTheOther) {
  Segments segments{2, policy::make_eviction(policy::Eviction::kLru, 2)};
  segments.add_device(2, policy::make_eviction(policy::Eviction::kLru, 2));
  segments.device(0).ready(0, 30);
  segments.device(1).ready(2, 31);
  EXPECT_EQ(segments.device(0).open_next(true), 0U);
  EXPECT_EQ(segments.device(1).open_next(true), 2U);
  FlashUsage usage{segments, kSegmentPages};
  TenantSpace tenant{"a", 2};
  usage.add(tenant, 0, 1, 8);
  usage.add(tenant, 2, 1, 8);
  tenant.quota.flash_bytes = 12 * kPageBytes;
  usage.make_room(tenant, 8 * kPageBytes);
  EXPECT_TRUE(usage.given_up(tenant, 0, 1) && usage.given_up(tenant, 2, 1));
  usage.add(tenant, 0, 9, 8);
  EXPECT_FALSE(usage.given_up(tenant, 0, 9));
  EXPECT_EQ(tenant.flash_bytes.value(), 8 * kPageBytes);
  usage.add(tenant, 2, 9, 4);
  EXPECT_FALSE(usage.given_up(tenant, 2, 9));
  usage.make_room(tenant, 4 * kPageBytes);
  EXPECT_TRUE(usage.given_up(tenant, 0, 9)) << "the older one of both devices goes first";
  EXPECT_FALSE(usage.given_up(tenant, 2, 9));
}

TEST(FlashUsageMemory, IsBoundedAndGoesToWhoNeedsIt) {
  Segments segments{4, policy::make_eviction(policy::Eviction::kLru, 4)};
  for (std::uint32_t segment = 0; segment < 3; ++segment) {
    segments.device(0).ready(segment, 30 - segment);
    segments.device(0).open_next(true);
  }
  FlashUsage usage{segments, kSegmentPages, 8};
  std::deque<TenantSpace> tenants;
  for (int i = 0; i < 12; ++i) tenants.emplace_back("t" + std::to_string(i));
  for (TenantSpace& tenant : tenants) usage.add(tenant, 0, 1, 1);
  const auto without_coarse = [](const TenantSpace& tenant) { return tenant.on_device[0].coarse.empty(); };
  EXPECT_EQ(std::ranges::count_if(tenants, without_coarse), 9) << "1 + 8 have shares";
  usage.forget(0);
  usage.add(tenants[0], 1, 1, 1);
  usage.add(tenants[1], 1, 2, 1);
  EXPECT_TRUE(tenants[1].on_device[0].coarse.empty()) << "the memory of a segment that went serves another";
}

}  // namespace
}  // namespace kvd::store
