#include "net/slices.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "io/sim/sim_loop.h"

namespace kvd::net {
namespace {

TEST(SliceLine, UsersTakeTurnsASliceEach) {
  const auto loop = *io::make_real_loop();
  SliceLine line(*loop);
  std::string done;
  const auto user = [&](char name, int slices) {
    return std::make_unique<SliceLine::User>(line, [&done, name, left = slices]() mutable {
      done += name;
      return --left > 0;
    });
  };
  const auto a = user('a', 3), b = user('b', 1);
  auto gone = user('x', 9);
  a->enter();
  b->enter();
  gone->enter();
  a->enter();  // stands there already
  gone.reset();
  EXPECT_EQ(done, "") << "not from inside";
  loop->run_once(Duration::zero());
  EXPECT_EQ(done, "a") << "one slice in a turn";
  for (int i = 0; i < 10; ++i) loop->run_once(Duration::zero());
  EXPECT_EQ(done, "abaa");
  b->enter();
  loop->run_once(Duration::zero());
  EXPECT_EQ(done, "abaab");
  b->enter();
  EXPECT_TRUE(b->waits());
  b->leave();
  EXPECT_FALSE(b->waits());
  loop->run_once(Duration::zero());
  EXPECT_EQ(done, "abaab") << "who has left has no turn";
}

TEST(SliceLine, SharesTakeTurns) {
  const auto loop = *io::make_real_loop();
  SliceLine line(*loop);
  std::string done;
  const int one = 1, other = 2;
  std::vector<std::unique_ptr<SliceLine::User>> users;
  for (const char name : {'a', 'b', 'c', 'x'}) {
    users.push_back(std::make_unique<SliceLine::User>(line, [&done, name] {
      done += name;
      return true;
    }));
    users.back()->set_share(name == 'x' ? &other : &one);
    users.back()->enter();
  }
  for (int i = 0; i < 8; ++i) loop->run_once(Duration::zero());
  EXPECT_EQ(done, "axbxcxax");
}

TEST(SliceLine, SlicesFollowEachOtherForItsTurn) {
  io::SimClock clock;
  io::SimLoop loop(clock);
  SliceLine line(loop, Millis(3));
  std::string done;
  const auto user = [&](char name) {
    return std::make_unique<SliceLine::User>(line, [&, name] {
      done += name;
      clock.advance_to(clock.now() + Millis(1));
      return true;
    });
  };
  const auto a = user('a'), b = user('b');
  EXPECT_TRUE(line.empty());
  a->enter();
  b->enter();
  EXPECT_FALSE(line.empty());
  loop.run_once(Duration::zero());
  EXPECT_EQ(done, "aba");
  loop.run_once(Duration::zero());
  EXPECT_EQ(done, "ababab");
}

}  // namespace
}  // namespace kvd::net
