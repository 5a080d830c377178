// Tests of Strays: what is remembered of frames that failed, and for how long.
#include "store/strays.h"

#include <gtest/gtest.h>

namespace kvd::store {
namespace {

using Places = std::vector<ReplacedPlace>;

TEST(StraysTest, AllOfARecordAreTakenOnceAndNoOthers) {
  Strays strays;
  EXPECT_TRUE(strays.add(1, {3, 30}));
  EXPECT_TRUE(strays.add(2, {3, 30}));
  EXPECT_TRUE(strays.add(1, {4, 40}));
  EXPECT_EQ(strays.take(1).size(), 2U);
  EXPECT_EQ(strays.take(1), Places{});
  EXPECT_EQ(strays.take(2), (Places{{3, 30}}));
  EXPECT_EQ(strays.take(3), Places{});
}

TEST(StraysTest, WhatASegmentHeldIsForgottenWithIt) {
  Strays strays;
  EXPECT_TRUE(strays.add(1, {3, 30}));
  EXPECT_TRUE(strays.add(1, {4, 40}));
  EXPECT_TRUE(strays.add(2, {3, 30}));
  strays.forget(3);
  EXPECT_EQ(strays.size(), 1U);
  EXPECT_EQ(strays.take(1), (Places{{4, 40}}));
}

TEST(StraysTest, NoMoreAreKeptThanThereIsRoomFor) {
  Strays strays;
  for (std::uint64_t hash = 0; hash < Strays::kMax; ++hash) ASSERT_TRUE(strays.add(hash, {3, 30}));
  EXPECT_FALSE(strays.add(Strays::kMax, {4, 40}));
  EXPECT_EQ(strays.size(), Strays::kMax);
  strays.forget(3);
  EXPECT_TRUE(strays.add(Strays::kMax, {4, 40}));
}

}  // namespace
}  // namespace kvd::store
