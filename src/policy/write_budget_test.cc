#include "policy/write_budget.h"

#include <gtest/gtest.h>

namespace kvd::policy {
namespace {

TEST(WriteBudget, IsAMeanOverTimeAndSavesUpToItsBound) {
  WriteBudget budget(100, 60, 10);
  EXPECT_TRUE(budget.bounded());
  EXPECT_EQ(budget.left(), 1000);
  budget.spend(1500);  // one write may be larger than what there is
  EXPECT_EQ(budget.left(), -500);
  budget.pass(4);
  EXPECT_EQ(budget.left(), -100);
  budget.pass(2);
  EXPECT_EQ(budget.left(), 100);
  budget.pass(1e9);
  EXPECT_EQ(budget.left(), 6000);
}

TEST(WriteBudget, BeginsWithNoMoreThanItMaySave) { EXPECT_EQ(WriteBudget(100, 60, 3600).left(), 6000); }

TEST(WriteBudget, OfNothingIsUnbounded) { EXPECT_FALSE(WriteBudget(0, 60, 60).bounded()); }

}  // namespace
}  // namespace kvd::policy
