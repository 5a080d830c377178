#include "client/op_deadline.h"

#include <gtest/gtest.h>

namespace kvd::client {
namespace {

Time at_ms(std::int64_t ms) { return Time(Millis(ms)); }

TEST(OpDeadline, WithoutLimitsNeverExpires) {
  const OpDeadline deadline(at_ms(5), Millis(0), Millis(0));
  EXPECT_EQ(deadline.check_at(at_ms(0)), kNever);
  EXPECT_FALSE(deadline.expired(at_ms(1'000'000'000), at_ms(0)));
  EXPECT_EQ(deadline.left_ms(at_ms(7)), 0U);
}

TEST(OpDeadline, TotalCountsFromSubmissionWhateverMoves) {
  const OpDeadline deadline(at_ms(10), Millis(50), Millis(0));
  EXPECT_FALSE(deadline.expired(at_ms(59), at_ms(59)));
  EXPECT_TRUE(deadline.expired(at_ms(60), at_ms(60)));
  EXPECT_EQ(deadline.left_ms(at_ms(20)), 40U);
  EXPECT_EQ(deadline.left_ms(at_ms(90)), 1U);
}

TEST(OpDeadline, ProgressExpiresOnlyWhenTheConnectionIsStill) {
  const OpDeadline deadline(at_ms(0), Millis(0), Millis(100));
  EXPECT_FALSE(deadline.expired(at_ms(150), at_ms(60)));
  EXPECT_EQ(deadline.check_at(at_ms(60)), at_ms(160));
  EXPECT_TRUE(deadline.expired(at_ms(160), at_ms(60)));
}

TEST(OpDeadline, BytesBeforeSubmissionDoNotCount) {
  const OpDeadline deadline(at_ms(1000), Millis(0), Millis(100));
  EXPECT_EQ(deadline.check_at(at_ms(10)), at_ms(1100));
}

TEST(OpDeadline, ProgressRestsWhileTheCallerOwes) {
  OpDeadline deadline(at_ms(0), Millis(0), Millis(100));
  deadline.set_owed(false, at_ms(10));
  EXPECT_EQ(deadline.check_at(at_ms(5)), kNever);
  deadline.set_owed(true, at_ms(500));
  EXPECT_EQ(deadline.check_at(at_ms(5)), at_ms(600));
  deadline.set_owed(true, at_ms(550));  // no change: the depot owed already
  EXPECT_EQ(deadline.check_at(at_ms(5)), at_ms(600));
}

TEST(OpDeadline, TheEarlierLimitCounts) {
  const OpDeadline deadline(at_ms(0), Millis(80), Millis(100));
  EXPECT_EQ(deadline.check_at(at_ms(0)), at_ms(80));
  const OpDeadline other(at_ms(0), Millis(800), Millis(100));
  EXPECT_EQ(other.check_at(at_ms(0)), at_ms(100));
}

TEST(OpDeadline, ADepotThatIsOnlySlowHasNotStalled) {
  const OpDeadline short_total(at_ms(0), Millis(20), Millis(100));
  EXPECT_TRUE(short_total.expired(at_ms(20), at_ms(0)));
  EXPECT_FALSE(short_total.stalled(at_ms(20), at_ms(0))) << "less than the progress limit has passed";
  const OpDeadline long_total(at_ms(0), Millis(500), Millis(100));
  EXPECT_TRUE(long_total.expired(at_ms(500), at_ms(450)));
  EXPECT_FALSE(long_total.stalled(at_ms(500), at_ms(450))) << "bytes moved";
  EXPECT_TRUE(long_total.stalled(at_ms(500), at_ms(400)));
}

TEST(OpDeadline, WithoutAProgressLimitTheTotalJudges) {
  OpDeadline deadline(at_ms(0), Millis(20), Millis(0));
  EXPECT_TRUE(deadline.stalled(at_ms(20), at_ms(19)));
  deadline.set_owed(false, at_ms(5));
  EXPECT_FALSE(deadline.stalled(at_ms(20), at_ms(19)));
}

TEST(OpDeadline, ACheckThatComesLateLeavesTheDepotHalfOfItsTime) {
  OpDeadline deadline(at_ms(0), Millis(500), Millis(100));
  deadline.note_late(at_ms(100), at_ms(125));
  EXPECT_TRUE(deadline.expired(at_ms(125), at_ms(0))) << "threads are late by that much";
  deadline.note_late(at_ms(100), at_ms(126));
  EXPECT_FALSE(deadline.expired(at_ms(126), at_ms(0)));
  EXPECT_FALSE(deadline.stalled(at_ms(126), at_ms(0)));
  EXPECT_EQ(deadline.check_at(at_ms(0)), at_ms(176));
  EXPECT_EQ(deadline.ask_at({.moved = at_ms(0)}), at_ms(126)) << "it is asked now";
  deadline.note_late(at_ms(176), at_ms(500));
  EXPECT_TRUE(deadline.expired(at_ms(500), at_ms(0))) << "the total goes on";
  EXPECT_FALSE(deadline.stalled(at_ms(500), at_ms(0))) << "but the depot is not to blame";
}

TEST(OpDeadline, AFewMillisecondsAreNotLateHoweverShortTheLimit) {
  OpDeadline deadline(at_ms(0), Millis(500), Millis(4));
  deadline.note_late(at_ms(4), at_ms(9));
  EXPECT_TRUE(deadline.expired(at_ms(9), at_ms(0)));
  EXPECT_TRUE(deadline.stalled(at_ms(9), at_ms(0)));
  deadline.note_late(at_ms(4), at_ms(10));
  EXPECT_FALSE(deadline.expired(at_ms(10), at_ms(0)));
}

TEST(OpDeadline, WithoutAProgressLimitLatenessExcusesNothing) {
  OpDeadline deadline(at_ms(0), Millis(20), Millis(0));
  deadline.note_late(at_ms(20), at_ms(900));
  EXPECT_TRUE(deadline.expired(at_ms(900), at_ms(0)));
  EXPECT_TRUE(deadline.stalled(at_ms(900), at_ms(0)));
}

}  // namespace
}  // namespace kvd::client
