#include "client/op_deadline.h"

#include <gtest/gtest.h>

namespace kvd::client {
namespace {

Time at(std::int64_t ms) { return Time(Millis(ms)); }

TEST(OpDeadline, WithoutLimitsNeverExpires) {
  const OpDeadline deadline(at(5), Millis(0), Millis(0));
  EXPECT_EQ(deadline.check_at(at(0)), kNever);
  EXPECT_FALSE(deadline.expired(at(1'000'000'000), at(0)));
  EXPECT_EQ(deadline.left_ms(at(7)), 0U);
}

TEST(OpDeadline, TotalCountsFromSubmissionWhateverMoves) {
  const OpDeadline deadline(at(10), Millis(50), Millis(0));
  EXPECT_FALSE(deadline.expired(at(59), at(59)));
  EXPECT_TRUE(deadline.expired(at(60), at(60)));
  EXPECT_EQ(deadline.left_ms(at(20)), 40U);
  EXPECT_EQ(deadline.left_ms(at(90)), 1U);
}

TEST(OpDeadline, ProgressExpiresOnlyWhenTheConnectionIsStill) {
  const OpDeadline deadline(at(0), Millis(0), Millis(100));
  EXPECT_FALSE(deadline.expired(at(150), at(60)));
  EXPECT_EQ(deadline.check_at(at(60)), at(160));
  EXPECT_TRUE(deadline.expired(at(160), at(60)));
}

TEST(OpDeadline, BytesBeforeSubmissionDoNotCount) {
  const OpDeadline deadline(at(1000), Millis(0), Millis(100));
  EXPECT_EQ(deadline.check_at(at(10)), at(1100));
}

TEST(OpDeadline, ProgressRestsWhileTheCallerOwes) {
  OpDeadline deadline(at(0), Millis(0), Millis(100));
  deadline.set_owed(false, at(10));
  EXPECT_EQ(deadline.check_at(at(5)), kNever);
  deadline.set_owed(true, at(500));
  EXPECT_EQ(deadline.check_at(at(5)), at(600));
  deadline.set_owed(true, at(550));  // no change: the depot owed already
  EXPECT_EQ(deadline.check_at(at(5)), at(600));
}

TEST(OpDeadline, TheEarlierLimitCounts) {
  const OpDeadline deadline(at(0), Millis(80), Millis(100));
  EXPECT_EQ(deadline.check_at(at(0)), at(80));
  const OpDeadline other(at(0), Millis(800), Millis(100));
  EXPECT_EQ(other.check_at(at(0)), at(100));
}

TEST(OpDeadline, ADepotThatIsOnlySlowHasNotStalled) {
  const OpDeadline short_total(at(0), Millis(20), Millis(100));
  EXPECT_TRUE(short_total.expired(at(20), at(0)));
  EXPECT_FALSE(short_total.stalled(at(20), at(0))) << "less than the progress limit has passed";
  const OpDeadline long_total(at(0), Millis(500), Millis(100));
  EXPECT_TRUE(long_total.expired(at(500), at(450)));
  EXPECT_FALSE(long_total.stalled(at(500), at(450))) << "bytes moved";
  EXPECT_TRUE(long_total.stalled(at(500), at(400)));
}

TEST(OpDeadline, WithoutAProgressLimitTheTotalJudges) {
  OpDeadline deadline(at(0), Millis(20), Millis(0));
  EXPECT_TRUE(deadline.stalled(at(20), at(19)));
  deadline.set_owed(false, at(5));
  EXPECT_FALSE(deadline.stalled(at(20), at(19)));
}

}  // namespace
}  // namespace kvd::client
