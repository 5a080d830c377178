// Tests of SimLoop: time jumps to timers and stands still for everything else.
#include "io/sim/sim_loop.h"

#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "io/fd.h"

namespace kvd::io {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

class SimLoopTest : public testing::Test {
 protected:
  SimClock clock_;
  SimLoop loop_{clock_};
};

TEST_F(SimLoopTest, TimeJumpsToTheNextTimer) {
  const Time start = clock_.now();
  std::vector<Time> fired;
  Timer late(loop_, [&] { fired.push_back(clock_.now()); });
  Timer early(loop_, [&] { fired.push_back(clock_.now()); });
  late.arm(start + hours(24));
  early.arm(start + seconds(5));
  EXPECT_TRUE(loop_.run_once(Duration::max()));
  EXPECT_TRUE(loop_.run_once(Duration::max()));
  EXPECT_EQ(fired, (std::vector{start + seconds(5), start + hours(24)}));
}

TEST_F(SimLoopTest, TimeStandsStillWhileThereIsWork) {
  const Time start = clock_.now();
  Timer timer(loop_, [] {});
  timer.arm_in(seconds(1));
  loop_.post([] {});
  EXPECT_TRUE(loop_.run_once(hours(1)));
  EXPECT_EQ(clock_.now(), start);
}

TEST_F(SimLoopTest, AWaitWithoutEventsTakesItsTime) {
  const Time start = clock_.now();
  EXPECT_FALSE(loop_.run_once(seconds(3)));
  EXPECT_EQ(clock_.now(), start + seconds(3));
  EXPECT_FALSE(loop_.run_once(Duration::zero()));
  EXPECT_EQ(clock_.now(), start + seconds(3));
}

TEST_F(SimLoopTest, RunForEndsExactlyThen) {
  const Time start = clock_.now();
  int fired = 0;
  Timer timer(loop_, [&] {
    ++fired;
    timer.arm_in(seconds(2));
  });
  timer.arm_in(seconds(2));
  loop_.run_for(seconds(9));
  EXPECT_EQ(fired, 4);
  EXPECT_EQ(clock_.now(), start + seconds(9));
}

TEST_F(SimLoopTest, RunUntilStopsAtTheConditionOrTheLimit) {
  const Time start = clock_.now();
  bool done = false;
  Timer timer(loop_, [&] { done = true; });
  timer.arm_in(seconds(2));
  EXPECT_FALSE(loop_.run_until([&] { return done; }, seconds(1)));
  EXPECT_EQ(clock_.now(), start + seconds(1));
  EXPECT_TRUE(loop_.run_until([&] { return done; }, hours(1)));
  EXPECT_EQ(clock_.now(), start + seconds(2));
}

TEST_F(SimLoopTest, RunsPostedWorkUntilStopped) {
  int ran = 0;
  loop_.post([&] { ++ran; });
  loop_.post([&] { loop_.stop(); });
  loop_.run();
  EXPECT_EQ(ran, 1);
  loop_.run_for(hours(1));  // a stopped loop does not wait
}

TEST_F(SimLoopTest, WatchesSocketPairs) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  UniqueFd a(fds[0]);
  UniqueFd b(fds[1]);
  std::vector<std::uint32_t> seen;
  std::unique_ptr<Watch> watch;
  watch = std::make_unique<Watch>(loop_, [&](std::uint32_t ready) {
    seen.push_back(ready);
    watch.reset();
  });
  ASSERT_TRUE(watch->start(a.get(), Watch::kRead));
  EXPECT_FALSE(loop_.run_once(Duration::zero()));
  ASSERT_EQ(::write(b.get(), "x", 1), 1);
  EXPECT_TRUE(loop_.run_once(hours(1)));
  EXPECT_FALSE(loop_.run_once(Duration::zero()));
  EXPECT_EQ(seen, (std::vector<std::uint32_t>{Watch::kRead}));
}

using SimLoopDeathTest = SimLoopTest;
TEST_F(SimLoopDeathTest, AnEndlessWaitForNothingIsABug) {
  EXPECT_DEATH(loop_.run_once(Duration::max()), "check failed");
}

}  // namespace
}  // namespace kvd::io
