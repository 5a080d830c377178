// Tests of what comes without descriptors (Polled), of spinning, and of threads that take the loop's turns.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "io/fd.h"
#include "io/loop.h"
#include "io/sim/sim_loop.h"

namespace kvd::io {
namespace {

using std::chrono::microseconds;

// A flag in memory that another thread sets, and that the loop takes back.
class Flag : public Polled {
 public:
  explicit Flag(Loop& loop) : loop_(loop) { loop_.add(*this); }
  ~Flag() override { loop_.remove(*this); }
  bool ready() override { return set.load(); }
  void before_sleep() override {
    ++sleeps;
    asleep = true;
    if (on_sleep) on_sleep();
  }
  void after_sleep() override { asleep = false; }
  void run() override {
    set = false;
    ++runs;
    if (on_run) on_run();
  }

  std::atomic<bool> set{false};
  std::atomic<bool> asleep{false};
  int sleeps = 0, runs = 0;
  std::function<void()> on_run, on_sleep;

 private:
  Loop& loop_;
};

TEST(LoopPolled, RunsWhatIsReadyWithoutSleeping) {
  const auto loop = *make_real_loop();
  Flag flag(*loop);
  flag.set = true;
  EXPECT_TRUE(loop->run_once(Duration::max()));
  EXPECT_EQ(flag.runs, 1);
  EXPECT_EQ(flag.sleeps, 0);
}

TEST(LoopPolled, WhatComesAsTheLoopFallsAsleepIsSeen) {
  const auto loop = *make_real_loop();
  Flag flag(*loop);
  flag.on_sleep = [&] { flag.set = true; };
  EXPECT_TRUE(loop->run_once(Duration::max()));
  EXPECT_EQ(flag.runs, 1);
  EXPECT_FALSE(flag.asleep);
}

TEST(LoopPolled, MayRemoveItselfAndOthersFromRun) {
  const auto loop = *make_real_loop();
  auto first = std::make_unique<Flag>(*loop), second = std::make_unique<Flag>(*loop);
  first->set = second->set = true;
  first->on_run = [&] { second.reset(); };
  loop->run_once(Duration::zero());
  EXPECT_EQ(first->runs, 1);
  first->on_run = [flag = &first] { auto gone = std::move(*flag); };
  first->set = true;
  loop->run_once(Duration::zero());
  EXPECT_EQ(first, nullptr);
  EXPECT_FALSE(loop->run_once(Duration::zero()));
}

TEST(LoopPolled, IsSeenInVirtualTimeToo) {
  SimClock clock;
  SimLoop loop(clock);
  Flag flag(loop);
  flag.set = true;
  loop.run_once(Duration::max());
  EXPECT_EQ(flag.runs, 1);
}

TEST(LoopSpin, LooksForAMomentAndThenSleeps) {
  const auto loop = *make_real_loop();
  loop->set_spin(microseconds(200));
  Flag flag(*loop);
  const Time begun = loop->now();
  loop->expect();
  while (flag.sleeps == 0) loop->run_once(Millis(1));
  EXPECT_GE(loop->now() - begun, std::thread::hardware_concurrency() > 1 ? microseconds(200) : microseconds(0));
}

TEST(LoopHelp, TakesNoTurnWhileTheLoopIsWithinOne) {
  const auto loop = *make_real_loop();
  bool helped = true;
  loop->post([&] { std::thread([&] { helped = loop->help(Duration::zero(), nullptr, nullptr); }).join(); });
  std::thread other([&] { loop->run_once(Duration::zero()); });
  other.join();
  EXPECT_FALSE(helped);
  EXPECT_FALSE(loop->help(Duration::zero(), nullptr, nullptr)) << "nobody's loop sleeps: its thread would not go on";
}

// The loop's thread sleeps; this one takes its turns, and leaves it such that it wakes up for what comes then.
class LoopHelpTest : public testing::Test {
 protected:
  LoopHelpTest() : thread_([this] { loop->run(); }) {}
  ~LoopHelpTest() override {
    loop->stop();
    thread_.join();
  }
  void help(const std::function<void()>& work, const std::function<bool()>& done, Duration limit = Millis(100),
            bool in_memory = true) {
    while (!loop->help(limit, work, done, in_memory)) std::this_thread::yield();
  }
  std::unique_ptr<Loop> loop = *make_real_loop();

 private:
  std::thread thread_;
};

TEST_F(LoopHelpTest, WorkPollingAndTimersRunHere) {
  const auto here = std::this_thread::get_id();
  std::unique_ptr<Flag> flag;
  std::unique_ptr<Timer> timer;
  std::thread::id ran, fired;
  help(
      [&] {
        flag = std::make_unique<Flag>(*loop);
        flag->on_run = [&] { ran = std::this_thread::get_id(); };
        flag->set = true;
        timer = std::make_unique<Timer>(*loop, [&] { fired = std::this_thread::get_id(); });
        timer->arm(loop->now());
      },
      [&] { return ran != std::thread::id() && fired != std::thread::id(); });
  EXPECT_EQ(ran, here);
  EXPECT_EQ(fired, here);
  help([&] { flag.reset(), timer.reset(); }, nullptr);
}

TEST_F(LoopHelpTest, ATimerThatIsLeftBehindFires) {
  std::atomic<bool> fired{false};
  std::unique_ptr<Timer> timer;
  help(
      [&] {
        timer = std::make_unique<Timer>(*loop, [&] { fired = true; });
        timer->arm_in(Millis(5));
      },
      nullptr);
  while (!fired) std::this_thread::yield();
  help([&] { timer.reset(); }, nullptr);
}

TEST_F(LoopHelpTest, WhatIsReadyBehindTheLastTurnIsLeftToTheLoop) {
  std::unique_ptr<Flag> flag;
  std::atomic<bool> ran{false};
  help(
      [&] {
        flag = std::make_unique<Flag>(*loop);
        flag->on_sleep = [&] { flag->set = !ran; };
        flag->on_run = [&] { ran = true; };
      },
      nullptr);
  while (!ran) std::this_thread::yield();
  help([&] { flag.reset(); }, nullptr);
}

// Readiness that the loop's thread has seen, of a descriptor that a helper has given up meanwhile, is not told of.
TEST_F(LoopHelpTest, AWatchThatAHelperEndsIsSilent) {
  for (int round = 0; round < 200; ++round) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    const UniqueFd a(fds[0]), b(fds[1]);
    std::unique_ptr<Watch> watch;
    bool ended = false, told_late = false;  // both under the loop's lock
    help(
        [&] {
          watch = std::make_unique<Watch>(*loop, [&](std::uint32_t) {
            told_late = told_late || ended;
            char byte = 0;
            static_cast<void>(::read(a.get(), &byte, 1));
          });
          ASSERT_TRUE(watch->start(a.get(), Watch::kRead).has_value());
        },
        nullptr);
    ASSERT_EQ(::write(b.get(), "x", 1), 1);
    help([&] { ended = true, watch.reset(); }, nullptr);
    help([&] { EXPECT_FALSE(told_late); }, nullptr);
  }
}

// A socket whose bytes are read by whoever has the loop's turn.
class LoopHelpSocketTest : public LoopHelpTest {
 protected:
  LoopHelpSocketTest() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    near_ = UniqueFd(fds[0]);
    far_ = UniqueFd(fds[1]);
    help(
        [&] {
          watch_ = std::make_unique<Watch>(*loop, [&](std::uint32_t) {
            char byte = 0;
            if (::read(near_.get(), &byte, 1) != 1) return;
            reader_ = std::this_thread::get_id();
            ++got_;
          });
          EXPECT_TRUE(watch_->start(near_.get(), Watch::kRead).has_value());
        },
        nullptr);
  }
  ~LoopHelpSocketTest() override {
    help([&] { watch_.reset(); }, nullptr);
  }
  void write() { EXPECT_EQ(::write(far_.get(), "x", 1), 1); }
  // Calls `then` once while this thread has the loop's descriptors, and goes on until `done`.
  void with_descriptors(const std::function<void()>& then, const std::function<bool()>& done, bool in_memory = true) {
    const auto began = std::chrono::steady_clock::now();
    for (bool called = false; !called;) {
      ASSERT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5)) << "it never has them";
      loop->post([] {});  // its thread sleeps anew, as it does behind the first helper
      int asked = 0;
      help(
          nullptr,
          [&] {
            if (++asked == 2) {
              called = true;
              then();
            }
            return called && done();
          },
          std::chrono::seconds(5), in_memory);
    }
  }

  UniqueFd near_, far_;
  std::unique_ptr<Watch> watch_;
  std::thread::id reader_;  // under the loop's lock
  std::atomic<int> got_{0};
};

TEST_F(LoopHelpSocketTest, WhatDescriptorsTellOfIsSeenHere) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "nobody spins on one core";
  for (int i = 1; i <= 20; ++i) {
    with_descriptors([&] { write(); }, [&] { return got_ == i; });
    help([&] { EXPECT_EQ(reader_, std::this_thread::get_id()); }, nullptr);
  }
}

TEST_F(LoopHelpSocketTest, BesideMemoryItIsSeenHereWhereItIsWaitedFor) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "nobody spins on one core";
  struct Never final : Polled {
    bool ready() override { return false; }
    void before_sleep() override {}
    void after_sleep() override {}
    void run() override {}
  } memory;
  help([&] { loop->add(memory); }, nullptr);
  for (int i = 1; i <= 20 && !HasFatalFailure(); ++i) {
    with_descriptors([&] { write(); }, [&] { return got_ == i; }, false);
    help([&] { EXPECT_EQ(reader_, std::this_thread::get_id()); }, nullptr);
  }
  help([&] { loop->remove(memory); }, nullptr);
}

// The loop's thread is late, as behind a stop of the process: what has come meanwhile is no peer's silence.
TEST_F(LoopHelpSocketTest, WhatHasComeIsSeenBeforeATimerThatIsDue) {
  for (const bool in_memory : {true, false}) {
    for (int i = 0; i < 20; ++i) {
      int seen = 0;
      std::unique_ptr<Timer> timer;
      const int before = got_;
      std::atomic<bool> fired{false};
      help(
          [&] {
            timer = std::make_unique<Timer>(*loop, [&] { seen = got_ - before, fired = true; });
            write();
            timer->arm(loop->now());
          },
          [&] { return fired.load(); }, Millis(100), in_memory);
      while (!fired) std::this_thread::yield();
      help([&] { timer.reset(); }, nullptr);
      ASSERT_EQ(seen, 1) << in_memory;
    }
  }
}

TEST_F(LoopHelpSocketTest, WhatComesBehindItIsLeftToTheLoop) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "nobody spins on one core";
  for (int i = 1; i <= 20; ++i) {
    bool through = false;
    with_descriptors([&] { through = true; }, [&] { return through; });
    write();
    while (got_ < i) std::this_thread::yield();
    help([&] { EXPECT_NE(reader_, std::this_thread::get_id()); }, nullptr);
  }
}

TEST_F(LoopHelpSocketTest, WhatIsPostedMeanwhileAndBehindItRuns) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "nobody spins on one core";
  std::atomic<int> ran{0};
  for (int i = 0; i < 20; ++i) {
    with_descriptors([&] { loop->post([&] { ++ran; }); }, [&] { return ran == 2 * i + 1; });
    loop->post([&] { ++ran; });
    while (ran < 2 * i + 2) std::this_thread::yield();
  }
}

TEST_F(LoopHelpTest, ManyHelpersTakeTurnsOneAtATime) {
  int turns = 0;  // no atomic: the loop's lock orders them
  std::vector<std::thread> helpers;
  for (int i = 0; i < 4; ++i) {
    helpers.emplace_back([&] {
      for (int turn = 0; turn < 500; ++turn) help([&] { ++turns; }, nullptr);
    });
  }
  for (int i = 0; i < 100; ++i) loop->post([&] { ++turns; });
  for (std::thread& helper : helpers) helper.join();
  std::atomic<bool> posted{false};
  loop->post([&] { posted = true; });
  while (!posted) std::this_thread::yield();
  help([&] { EXPECT_EQ(turns, 2100); }, nullptr);
}

}  // namespace
}  // namespace kvd::io
