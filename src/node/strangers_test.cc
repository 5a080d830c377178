#include "node/strangers.h"

#include <gtest/gtest.h>

#include "io/sim/sim_loop.h"

namespace kvd::node {
namespace {

struct Visitor final : Strangers::Guest {
  [[nodiscard]] bool silent() const override { return !spoke; }
  void give_way() override {
    pushed_out = true;
    place.release();
  }
  bool come(Strangers& strangers) {
    place = strangers.take(*this);
    return static_cast<bool>(place);
  }
  Strangers::Place place;
  bool spoke = false, pushed_out = false;
};

class StrangersTest : public testing::Test {
 protected:
  io::SimClock clock_;
  io::SimLoop loop_{clock_};
  Strangers strangers_{loop_, 2, Millis(20)};
  Visitor first_, second_, third_, fourth_;
};

TEST_F(StrangersTest, TheOneThatHasBeenSilentForLongestGivesWayAfterItsGrace) {
  EXPECT_TRUE(first_.come(strangers_));
  loop_.run_for(Millis(5));
  EXPECT_TRUE(second_.come(strangers_));
  loop_.run_for(Millis(10));
  EXPECT_FALSE(third_.come(strangers_)) << "nobody has had its grace";
  loop_.run_for(Millis(5));
  EXPECT_TRUE(third_.come(strangers_));
  EXPECT_TRUE(first_.pushed_out);
  EXPECT_FALSE(second_.pushed_out);
  EXPECT_FALSE(fourth_.come(strangers_));
  EXPECT_EQ(strangers_.taken(), 2U);
}

TEST_F(StrangersTest, WhoHasSpokenGivesWayBehindAllThatAreSilent) {
  first_.spoke = true;
  EXPECT_TRUE(first_.come(strangers_) && second_.come(strangers_));
  loop_.run_for(Millis(20));
  EXPECT_TRUE(third_.come(strangers_));
  EXPECT_TRUE(second_.pushed_out);
  EXPECT_FALSE(first_.pushed_out);
  third_.spoke = true;
  loop_.run_for(Millis(20));
  EXPECT_TRUE(fourth_.come(strangers_));
  EXPECT_TRUE(first_.pushed_out);
}

TEST_F(StrangersTest, WhoWaitsForAnAnswerStays) {
  EXPECT_TRUE(first_.come(strangers_) && second_.come(strangers_));
  first_.place.stay();
  second_.place.stay();
  loop_.run_for(Millis(100));
  EXPECT_FALSE(third_.come(strangers_));
  second_.place.release();
  EXPECT_TRUE(third_.come(strangers_));
}

TEST_F(StrangersTest, APlaceThatMovesIsGivenBackOnce) {
  EXPECT_TRUE(first_.come(strangers_));
  Strangers::Place moved = std::move(first_.place);
  EXPECT_FALSE(first_.place);
  EXPECT_TRUE(moved);
  EXPECT_EQ(strangers_.taken(), 1U);
  moved = {};
  EXPECT_EQ(strangers_.taken(), 0U);
}

}  // namespace
}  // namespace kvd::node
