// What is counted of a tenant on flash, and what it gives up first.
#include "store/flash_usage.h"

#include <gtest/gtest.h>

#include "policy/eviction.h"

namespace kvd::store {
namespace {

constexpr std::uint32_t kSegmentPages = 64;  // of a segment: 4 for each stretch

class FlashUsageTest : public ::testing::Test {
 protected:
  // Segments 0 to 2 are opened in this order, which is not that of their generations.
  FlashUsageTest() {
    for (std::uint32_t segment = 0; segment < 3; ++segment) {
      segments_.ready(segment, 30 - segment);
      EXPECT_EQ(segments_.open_next(true), segment);
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
  EXPECT_EQ(segments_.start_eviction(false), 1U);
  usage_.add(b_, 2, 10, 9);
  EXPECT_FALSE(usage_.spent(2));
  usage_.forget(1);
  EXPECT_FALSE(usage_.spent(1));
}

}  // namespace
}  // namespace kvd::store
