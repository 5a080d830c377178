// Tests of KeeperPipe: its end is told of, once, whatever is done in it.
#include "node/keeper_pipe.h"

#include <sys/syscall.h>

#include <cerrno>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "io/sim/sim_loop.h"
#include "io/testing/deny_syscall.h"

namespace kvd::node {
namespace {

TEST(KeeperPipe, TellsWhenTheLastCopyIsClosed) {
  io::SimClock clock;
  io::SimLoop loop(clock);
  KeeperPipe pipe(loop);
  EXPECT_FALSE(pipe.held());
  auto keeper = pipe.open();
  ASSERT_TRUE(keeper.has_value());
  int ends = 0;
  pipe.on_end = [&] { ++ends; };
  io::UniqueFd copy(::dup(keeper->get()));
  keeper->reset();
  loop.settle();
  EXPECT_TRUE(pipe.held());
  copy.reset();
  loop.settle();
  EXPECT_FALSE(pipe.held());
  EXPECT_EQ(ends, 1);
}

TEST(KeeperPipe, MayBeDestroyedByItsEnd) {
  io::SimClock clock;
  io::SimLoop loop(clock);
  auto pipe = std::make_unique<KeeperPipe>(loop);
  auto keeper = pipe->open();
  pipe->on_end = [&] { pipe.reset(); };
  keeper->reset();
  loop.settle();
  EXPECT_EQ(pipe, nullptr);
}

TEST(KeeperPipe, IsNotMadeWhereTheKernelWouldNotTellOfItsEnd) {
  bool denied = false;
  std::thread([&] {
    auto loop = io::make_real_loop();
    ASSERT_TRUE(loop.has_value());
    denied = io::deny_syscall(SYS_epoll_ctl, ENOMEM);
    if (!denied) return;
    KeeperPipe pipe(**loop);
    EXPECT_FALSE(pipe.open().has_value());
    EXPECT_FALSE(pipe.held());
  }).join();
  if (!denied) GTEST_SKIP() << "system calls cannot be denied here";
}

}  // namespace
}  // namespace kvd::node
