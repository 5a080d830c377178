#include "net/slices.h"

#include <memory>
#include <string>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace kvd::net
