// Tests of what makes reads too slow: how long they take, for how many seconds, and whether they come back at all.
#include "store/read_watch.h"

#include <deque>
#include <string>

#include <gtest/gtest.h>

namespace kvd::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A device that is asked and judged on a clock of its own.
class ReadWatchTest : public ::testing::Test {
 protected:
  // Time passes; once a second the reads are judged, until there is a reason. Requires steps that divide a second.
  void pass(Duration time) {
    for (const Time end = now_ + time; now_ < end && why_.empty();) {
      now_ += milliseconds(50);
      while (!under_way_.empty() && under_way_.front().done <= now_) {
        watch_.completed(under_way_.front().read, now_);
        under_way_.pop_front();
      }
      if ((now_ - Time{}) % seconds(1) != Duration::zero()) continue;
      if (const char* why = watch_.judge(now_, behind_recovery_)) why_ = why;
    }
  }
  void read(Duration takes, std::uint64_t bytes = 4096) {
    Time done = now_ + takes;
    if (!under_way_.empty()) done = std::max(done, under_way_.back().done);
    watch_.submitted(under_way_.emplace_back(done).read, now_, bytes);
  }
  // `depth` reads are kept under way for `time`, each of which takes as long.
  void read_on(Duration time, Duration takes, std::size_t depth = 32, std::uint64_t bytes = 4096) {
    for (const Time end = now_ + time; now_ < end && why_.empty(); pass(milliseconds(50)))
      while (under_way_.size() < depth) read(takes, bytes * depth);
  }

  struct UnderWay {
    explicit UnderWay(Time at) : done(at) {}
    Time done;
    ReadWatch::Read read;
  };
  ReadWatch watch_;
  std::deque<UnderWay> under_way_;
  Time now_{seconds(100)};
  bool behind_recovery_ = true;
  std::string why_;
};

TEST_F(ReadWatchTest, ReadsThatTakeTooLongForSecondsAreAReason) {
  const Time start = now_;
  read_on(seconds(60), milliseconds(3'000), 1);
  EXPECT_EQ(why_, "reads take too long");
  EXPECT_GE(now_ - start, seconds(20)) << "eight seconds in which there was one to judge by";
  EXPECT_LE(now_ - start, seconds(30));
}

TEST_F(ReadWatchTest, BeforeRecoveryHasEndedTheyAreNone) {
  behind_recovery_ = false;
  read_on(seconds(300), milliseconds(5'000), 4);
  EXPECT_EQ(why_, "");
}

TEST_F(ReadWatchTest, OneThatTakesLongIsNone) {
  for (int i = 0; i < 4; ++i) {
    read(seconds(9));
    pass(seconds(40));
  }
  EXPECT_EQ(why_, "");
}

// Where half of a second's reads are slow and most seconds are others, the device does what it is for.
TEST_F(ReadWatchTest, PausesOfTheDeviceAreNone) {
  for (int i = 0; i < 20; ++i) {
    read_on(seconds(8), milliseconds(10));
    for (int k = 0; k < 32; ++k) read(milliseconds(2'500));
    pass(seconds(3));
  }
  EXPECT_EQ(why_, "");
}

TEST_F(ReadWatchTest, WhatTheDeviceHasHadToMoveCounts) {
  read_on(seconds(120), milliseconds(4'000), 32, 4 << 20);  // 128 MiB in four seconds
  EXPECT_EQ(why_, "");
  read_on(seconds(120), milliseconds(5'000), 32, 4 << 20);
  EXPECT_EQ(why_, "reads take too long");
}

TEST_F(ReadWatchTest, NoneThatCompletesForTenSecondsIsAReason) {
  read_on(seconds(100), milliseconds(10));
  const Time start = now_;
  for (int i = 0; i < 4; ++i) read(std::chrono::hours(1));
  pass(seconds(60));
  EXPECT_EQ(why_, "no read completes");
  EXPECT_GE(now_ - start, seconds(12));
  EXPECT_LE(now_ - start, seconds(13));
}

TEST_F(ReadWatchTest, OneThatDoesNotWhileOthersDoIsAReasonAfterThirty) {
  ReadWatch::Read stuck;
  watch_.submitted(stuck, now_, 4096);
  const Time start = now_;
  read_on(seconds(100), milliseconds(10));
  EXPECT_EQ(why_, "a read does not complete");
  EXPECT_GE(now_ - start, seconds(32));
  EXPECT_LE(now_ - start, seconds(33));
  watch_.completed(stuck, now_);
}

TEST_F(ReadWatchTest, WhatTookLongWhileTheProcessSleptIsForgotten) {
  for (int i = 0; i < 20; ++i) {
    for (int k = 0; k < 8; ++k) read(seconds(4));
    now_ += seconds(4);
    watch_.forget(now_);
    pass(seconds(1));
  }
  EXPECT_EQ(why_, "");
}

}  // namespace
}  // namespace kvd::store
