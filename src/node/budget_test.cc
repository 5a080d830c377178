#include "node/budget.h"

#include <cstdint>

#include <gtest/gtest.h>

#include "node/pins.h"

namespace kvd::node {
namespace {

TEST(Budget, SharesGiveThemselvesBack) {
  Gauge used;
  Budget budget(100, &used);
  {
    Budget::Share a = budget.take(60);
    EXPECT_TRUE(a);
    EXPECT_FALSE(budget.take(41));
    Budget::Share b = budget.take(40);
    EXPECT_TRUE(b);
    EXPECT_EQ(used.value(), 100U);
    a = std::move(b);  // gives a's 60 back
    EXPECT_EQ(used.value(), 40U);
  }
  EXPECT_EQ(used.value(), 0U);
}

TEST(Budget, OneShareLargerThanAllIsGivenWhenNothingElseIs) {
  Budget budget(100);
  Budget::Share huge = budget.take(UINT64_MAX);
  EXPECT_TRUE(huge);
  EXPECT_FALSE(budget.take(1));
  huge.release();
  Budget::Share small = budget.take(1);
  EXPECT_FALSE(budget.take(UINT64_MAX));
}

TEST(Budget, WhoWantsEverythingLeavesOthersTheirs) {
  Budget budget(640);
  EXPECT_TRUE(budget.is_fair(0, 10'000)) << "nobody else is there";
  Budget::Share first = budget.take(480);
  EXPECT_TRUE(budget.is_fair(480, 32));
  EXPECT_FALSE(budget.is_fair(480, 33)) << "four times what is left for all others";
  EXPECT_TRUE(budget.is_fair(0, 80));
  EXPECT_FALSE(budget.is_fair(0, 81)) << "an eighth is for small ones";
  Budget::Share second = budget.take(80);
  EXPECT_FALSE(budget.is_fair(0, 11));
  EXPECT_TRUE(budget.is_fair(0, 10));
  EXPECT_TRUE(budget.is_fair(10, 62));
  EXPECT_FALSE(budget.is_fair(10, 63));
  EXPECT_FALSE(budget.is_fair(10, 81)) << "there is no room";
  int told = 0;
  budget.on_room = [&] { ++told; };
  second.release();
  EXPECT_EQ(told, 1) << "who was refused is told";
}

TEST(Budget, TellsOnceWhenSomebodyWasRefused) {
  Budget budget(100);
  int told = 0;
  budget.on_room = [&] { ++told; };
  Budget::Share a = budget.take(50);
  Budget::Share b = budget.take(50);
  EXPECT_FALSE(budget.take(1));
  EXPECT_FALSE(budget.take(1));
  a.release();
  b.release();
  EXPECT_EQ(told, 1);
}

TEST(Pins, TheLastIsForThoseWhoHaveTakenAsMuch) {
  Budget node(1600);
  Pins pins(800, node);
  EXPECT_TRUE(pins.may_take(800)) << "nobody else is there";
  Budget::Share others = node.take(1480);
  EXPECT_TRUE(pins.may_take(20));
  EXPECT_FALSE(pins.may_take(21)) << "a sixteenth is for those who read";
  std::uint64_t taken = 20;
  pins.taken = [&taken] { return taken; };
  EXPECT_FALSE(pins.may_take(21));
  taken = 21;
  EXPECT_TRUE(pins.may_take(21));
  EXPECT_FALSE(pins.may_take(26)) << "nor much at a time";
  const Budget::Share own = pins.take(10), of_node = node.take(10);
  taken = 30;
  EXPECT_FALSE(pins.may_take(21)) << "with what it holds";
  taken = 31;
  EXPECT_TRUE(pins.may_take(21));
  int told = 0;
  node.on_room = [&told] { ++told; };
  EXPECT_FALSE(pins.may_take(791)) << "of its own there is less";
  taken = 0;
  EXPECT_FALSE(pins.may_take(21));
  others.release();
  EXPECT_EQ(told, 1) << "who was refused is told";
}

}  // namespace
}  // namespace kvd::node
