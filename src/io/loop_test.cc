// Tests of RealLoop: order, wake-up, and callbacks that destroy or stop what they belong to and each other.
#include "io/loop.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "io/fd.h"

namespace kvd::io {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;

std::unique_ptr<Loop> new_loop() { return std::move(make_real_loop().value()); }

struct Pair {
  Pair() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    a.reset(fds[0]);
    b.reset(fds[1]);
  }
  UniqueFd a, b;
};

void write_byte(const UniqueFd& fd) { ASSERT_EQ(::write(fd.get(), "x", 1), 1); }

TEST(RealLoop, RunsPostedWorkInOrderAndNewWorkInTheNextTurn) {
  const auto loop = new_loop();
  std::vector<int> ran;
  loop->post([&] {
    ran.push_back(1);
    loop->post([&] { ran.push_back(3); });
  });
  loop->post([&] { ran.push_back(2); });
  EXPECT_TRUE(ran.empty());
  EXPECT_TRUE(loop->run_once(hours(1)));
  EXPECT_EQ(ran, (std::vector{1, 2}));
  EXPECT_TRUE(loop->run_once(hours(1)));
  EXPECT_EQ(ran, (std::vector{1, 2, 3}));
  EXPECT_FALSE(loop->run_once(Duration::zero()));
}

TEST(RealLoop, FreesWhatPostedWorkCaptured) {
  const auto loop = new_loop();
  auto held = std::make_shared<int>(0);
  loop->post([copy = held] {});
  loop->post([&, weak = std::weak_ptr(held)] { EXPECT_EQ(weak.use_count(), 1); });
  loop->run_once(Duration::zero());
  EXPECT_EQ(held.use_count(), 1);
}

TEST(RealLoop, FiresTimersInOrderOfTimeThenOfArmingAndNeverEarly) {
  const auto loop = new_loop();
  const Time start = loop->now();
  std::vector<int> fired;
  std::vector<std::unique_ptr<Timer>> timers;
  const std::array delays{microseconds(300), microseconds(100), microseconds(300), microseconds(200)};
  for (int i = 0; i < 4; ++i) {
    timers.push_back(std::make_unique<Timer>(*loop, [&, i] {
      EXPECT_GE(loop->now(), start + delays[static_cast<std::size_t>(i)]);
      fired.push_back(i);
    }));
    timers.back()->arm(start + delays[static_cast<std::size_t>(i)]);
  }
  while (fired.size() < 4) loop->run_once(hours(1));
  EXPECT_EQ(fired, (std::vector{1, 3, 0, 2}));
}

TEST(RealLoop, MovesAndDisarmsTimers) {
  const auto loop = new_loop();
  int fired = 0;
  Timer moved(*loop, [&] { ++fired; });
  Timer disarmed(*loop, [&] { fired += 100; });
  moved.arm_in(hours(1));
  disarmed.arm(loop->now());
  moved.arm(loop->now());
  disarmed.disarm();
  EXPECT_TRUE(moved.armed());
  EXPECT_FALSE(disarmed.armed());
  EXPECT_TRUE(loop->run_once(hours(1)));
  EXPECT_EQ(fired, 1);
  EXPECT_FALSE(moved.armed());
}

TEST(RealLoop, KeepsHeapOrderWhenTimersLeaveFromTheMiddle) {
  const auto loop = new_loop();
  const Time start = loop->now();
  std::vector<int> fired;
  std::vector<std::unique_ptr<Timer>> timers;
  for (int i = 0; i < 200; ++i) {
    timers.push_back(std::make_unique<Timer>(*loop, [&, i] { fired.push_back((i * 73) % 200); }));
    timers.back()->arm(start - microseconds(200 - (i * 73) % 200));
  }
  for (std::size_t i = 0; i < timers.size(); i += 3) timers[i].reset();
  EXPECT_TRUE(loop->run_once(Duration::zero()));
  EXPECT_EQ(fired.size(), 133u);
  EXPECT_TRUE(std::ranges::is_sorted(fired));
}

TEST(RealLoop, TimerThatArmsItselfForThePastStarvesNobody) {
  const auto loop = new_loop();
  int greedy_fired = 0;
  int other_fired = 0;
  Timer greedy(*loop, [] {});
  Timer other(*loop, [&] { ++other_fired; });
  std::optional<Timer> again;
  again.emplace(*loop, [&] {
    ++greedy_fired;
    again->arm(Time::min());
  });
  again->arm(Time::min());
  other.arm(loop->now());
  loop->run_once(Duration::zero());
  loop->run_once(Duration::zero());
  EXPECT_EQ(other_fired, 1);
  EXPECT_EQ(greedy_fired, 2);
}

TEST(RealLoop, TimerMayBeDestroyedByItsOwnCallbackOrAnothers) {
  const auto loop = new_loop();
  auto captured = std::make_shared<int>(7);
  std::unique_ptr<Timer> self;
  std::unique_ptr<Timer> other;
  int seen = 0;
  self = std::make_unique<Timer>(*loop, [&, captured] {
    other.reset();
    self.reset();
    seen = *captured;  // what the callback captured lives until it returns
  });
  other = std::make_unique<Timer>(*loop, [&] { seen = -1; });
  captured.reset();
  self->arm(loop->now());
  other->arm(loop->now());
  loop->run_once(hours(1));
  loop->run_once(Duration::zero());
  EXPECT_EQ(seen, 7);
}

TEST(RealLoop, TimerCanBeArmedAgainFromItsCallback) {
  const auto loop = new_loop();
  int fired = 0;
  std::unique_ptr<Timer> timer;
  timer = std::make_unique<Timer>(*loop, [&] {
    if (++fired < 3) timer->arm_in(microseconds(1));
  });
  timer->arm_in(microseconds(1));
  while (fired < 3) loop->run_once(hours(1));
  EXPECT_FALSE(timer->armed());
}

TEST(RealLoop, ReportsReadinessByLevel) {
  const auto loop = new_loop();
  Pair pair;
  std::vector<std::uint32_t> seen;
  Watch watch(*loop, [&](std::uint32_t ready) { seen.push_back(ready); });
  ASSERT_TRUE(watch.start(pair.a.get(), Watch::kRead));
  EXPECT_FALSE(loop->run_once(Duration::zero()));
  write_byte(pair.b);
  EXPECT_TRUE(loop->run_once(hours(1)));
  EXPECT_TRUE(loop->run_once(hours(1)));
  ASSERT_TRUE(watch.set(Watch::kRead | Watch::kWrite));
  EXPECT_TRUE(loop->run_once(hours(1)));
  EXPECT_EQ(seen, (std::vector<std::uint32_t>{Watch::kRead, Watch::kRead, Watch::kRead | Watch::kWrite}));
  watch.stop();
  EXPECT_FALSE(loop->run_once(Duration::zero()));
}

TEST(RealLoop, SaysSinceWhenReadinessMayHaveWaited) {
  const auto loop = new_loop();
  const Pair pair;
  Time since{};
  Watch watch(*loop, [&](std::uint32_t) { since = loop->ready_since(); });
  ASSERT_TRUE(watch.start(pair.b.get(), Watch::kRead).has_value());
  const Time before = loop->now();
  EXPECT_FALSE(loop->run_once(Duration::zero()));
  const Time looked = loop->now();
  write_byte(pair.a);
  EXPECT_TRUE(loop->run_once(hours(1)));
  EXPECT_GE(since, before) << "the turn before had looked";
  EXPECT_LE(since, looked) << "and the byte came behind that";
  watch.stop();
  Timer timer(*loop, [] {});
  const Time due = loop->now() + std::chrono::milliseconds(2);
  timer.arm(due);
  while (timer.armed()) loop->run_once(hours(1));
  EXPECT_GE(loop->ready_since(), due) << "it slept: nothing waited";
}

TEST(RealLoop, SaysWhenItsTurnBegan) {
  const auto loop = new_loop();
  Time begun{}, end{};
  const auto take_long = [&] {
    begun = loop->turn_begun();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(loop->turn_begun(), begun);
    end = loop->now();
  };
  for (int i = 0; i < 2; ++i) {
    const Time before = loop->now();
    ASSERT_GE(before, end);
    loop->post(take_long);
    ASSERT_TRUE(loop->run_once(hours(1)));
    EXPECT_GE(begun, before);
    EXPECT_LT(begun, end);
  }
}

TEST(RealLoop, ATimerThatIsFarWhenALongTurnBeginsHasTheNextOne) {
  const auto loop = new_loop();
  Timer timer(*loop, [] {});
  loop->post([&] {
    timer.arm_in(std::chrono::milliseconds(3));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  ASSERT_TRUE(loop->run_once(hours(1)));
  ASSERT_TRUE(timer.armed()) << "the clock was not looked at";
  ASSERT_TRUE(loop->run_once(hours(1)));
  EXPECT_FALSE(timer.armed());
}

TEST(RealLoop, HangUpSetsBothBitsAndIsSilentWithoutInterest) {
  const auto loop = new_loop();
  Pair pair;
  std::uint32_t seen = 0;
  Watch watch(*loop, [&](std::uint32_t ready) { seen = ready; });
  ASSERT_TRUE(watch.start(pair.a.get(), Watch::kRead));
  pair.b.reset();
  ASSERT_TRUE(watch.set(Watch::kNone));
  bool fired = false;
  Timer timer(*loop, [&] { fired = true; });
  timer.arm_in(microseconds(500));
  int turns = 0;
  while (!fired) {
    loop->run_once(hours(1));
    ++turns;
  }
  EXPECT_LE(turns, 2);  // the hang-up does not keep the loop awake
  EXPECT_EQ(seen, 0u);
  ASSERT_TRUE(watch.set(Watch::kWrite));
  EXPECT_TRUE(loop->run_once(hours(1)));
  EXPECT_EQ(seen, Watch::kRead | Watch::kWrite);
}

TEST(RealLoop, RefusesADescriptorThatCannotBeWatched) {
  const auto loop = new_loop();
  Watch watch(*loop, [](std::uint32_t) {});
  const Status status = watch.start(1 << 20, Watch::kRead);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kIo);
  EXPECT_EQ(status.error().sys_errno, EBADF);
  EXPECT_LT(watch.fd(), 0);
}

TEST(RealLoop, StopOrDestructionDropsReadinessThatTheLoopHasAlreadySeen) {
  const auto loop = new_loop();
  std::array<Pair, 3> pairs;
  std::array<std::unique_ptr<Watch>, 3> watches;
  int delivered = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    watches[i] = std::make_unique<Watch>(*loop, [&](std::uint32_t) {
      ++delivered;
      for (auto& watch : watches) watch.reset();  // itself and both others of this batch
    });
    ASSERT_TRUE(watches[i]->start(pairs[i].a.get(), Watch::kRead));
    write_byte(pairs[i].b);
  }
  EXPECT_TRUE(loop->run_once(hours(1)));
  EXPECT_EQ(delivered, 1);
  EXPECT_FALSE(loop->run_once(Duration::zero()));
}

TEST(RealLoop, WatchRestartedOnAnotherDescriptorMissesTheOldOnesReadiness) {
  const auto loop = new_loop();
  std::array<Pair, 2> pairs;
  Pair quiet;
  std::array<std::unique_ptr<Watch>, 2> watches;
  int delivered = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    watches[i] = std::make_unique<Watch>(*loop, [&, i](std::uint32_t) {
      ++delivered;
      watches[1 - i]->stop();
      ASSERT_TRUE(watches[1 - i]->start(quiet.a.get(), Watch::kRead));
      watches[i]->stop();
    });
    ASSERT_TRUE(watches[i]->start(pairs[i].a.get(), Watch::kRead));
    write_byte(pairs[i].b);
  }
  EXPECT_TRUE(loop->run_once(hours(1)));
  EXPECT_EQ(delivered, 1);
}

TEST(RealLoop, IsWokenByOtherThreadsAndStops) {
  const auto loop = new_loop();
  std::atomic<int> ran = 0;
  std::thread thread([&] { loop->run(); });
  std::vector<std::thread> posters;
  for (int i = 0; i < 4; ++i) {
    posters.emplace_back([&] {
      for (int j = 0; j < 1000; ++j) {
        loop->post([&] {
          if (ran.fetch_add(1) + 1 == 4000) loop->stop();
        });
      }
    });
  }
  for (auto& poster : posters) poster.join();
  thread.join();
  EXPECT_EQ(ran, 4000);
}

int interrupted_fd = -1;

// What a stop of the process looks like from inside: the wait is interrupted, and while nothing runs bytes arrive and
// timers become due.
extern "C" void write_and_linger(int) {
  const int error = errno;
  [[maybe_unused]] const ssize_t wrote = ::write(interrupted_fd, "x", 1);
  const timespec longer_than_the_timer{.tv_sec = 0, .tv_nsec = 60'000'000};
  ::nanosleep(&longer_than_the_timer, nullptr);
  errno = error;
}

TEST(RealLoop, AfterAnInterruptionDescriptorsComeBeforeTimers) {
  const auto loop = new_loop();
  Pair pair;
  std::vector<int> order;
  Watch watch(*loop, [&](std::uint32_t) {
    order.push_back(1);
    watch.stop();
  });
  ASSERT_TRUE(watch.start(pair.a.get(), Watch::kRead).has_value());
  Timer timer(*loop, [&] { order.push_back(2); });
  interrupted_fd = pair.b.get();
  struct sigaction action{};
  struct sigaction before{};
  action.sa_handler = write_and_linger;
  ASSERT_EQ(::sigaction(SIGALRM, &action, &before), 0);
  timer.arm_in(Millis(50));
  const itimerval soon{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = 5'000}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &soon, nullptr), 0);
  while (order.size() < 2) loop->run_once(hours(1));
  ::sigaction(SIGALRM, &before, nullptr);
  EXPECT_EQ(order, (std::vector{1, 2}));
}

TEST(RealLoop, StopFromAnotherThreadEndsAnEndlessWait) {
  const auto loop = new_loop();
  std::thread thread([&] { loop->run(); });
  loop->stop();
  thread.join();
  loop->run();  // final: returns at once
}

}  // namespace
}  // namespace kvd::io
