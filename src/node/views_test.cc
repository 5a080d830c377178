// What a connection holds of the shared pool, in virtual time.
#include "node/views.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "io/sim/sim_loop.h"

namespace kvd::node {
namespace {

class ViewsTest : public testing::Test {
 protected:
  std::uint64_t add(Duration life = std::chrono::seconds(10)) {
    const std::uint64_t id = views.next_id();
    views.add(100, loop.now() + life, [this, id] { ended.push_back(id); });
    return id;
  }
  Status release(std::vector<std::uint64_t> ids) {
    return views.release(wire::U64View(std::span<const std::uint64_t>(ids)));
  }
  [[nodiscard]] std::uint64_t held_bytes() const { return counters.view_bytes.value(); }

  io::SimClock clock;
  io::SimLoop loop{clock};
  NodeCounters counters;
  std::vector<std::uint64_t> ended;
  Views views{loop, counters};
};

TEST_F(ViewsTest, AViewHoldsUntilItIsGivenBack) {
  const std::uint64_t a = add();
  const std::uint64_t b = add();
  EXPECT_NE(a, 0U);
  EXPECT_EQ(held_bytes(), 200U);
  ASSERT_TRUE(release({b}).has_value());
  EXPECT_EQ(ended, std::vector{b});
  EXPECT_EQ(views.held(), 1U);
  ASSERT_TRUE(release({a}).has_value());
  EXPECT_EQ(held_bytes(), 0U);
  EXPECT_EQ(counters.views.value(), 0U);
  EXPECT_EQ(views.given_back_bytes(), 200U);
}

TEST_F(ViewsTest, WhatIsNotHeldCannotBeGivenBack) {
  const std::uint64_t a = add();
  EXPECT_EQ(release({a + 1}).error().code, Code::kCorrupt);
  EXPECT_EQ(release({a, a}).error().code, Code::kCorrupt) << "twice in one message";
  EXPECT_EQ(release({a}).error().code, Code::kCorrupt) << "twice";
  EXPECT_EQ(ended, std::vector{a});
}

TEST_F(ViewsTest, TimeEndsAViewAndALateClientIsForgivenOnce) {
  const std::uint64_t late = add(Millis(50));
  const std::uint64_t patient = add(Millis(90));
  loop.run_for(Millis(60));
  EXPECT_EQ(ended, std::vector{late});
  EXPECT_EQ(counters.views_expired.value(), 1U);
  EXPECT_EQ(held_bytes(), 100U);
  EXPECT_TRUE(release({late}).has_value());
  EXPECT_EQ(release({late}).error().code, Code::kCorrupt);
  loop.run_for(Millis(60));
  EXPECT_EQ(ended, (std::vector{late, patient}));
  EXPECT_EQ(views.held(), 0U);
  EXPECT_TRUE(release({patient}).has_value());
  EXPECT_EQ(views.given_back_bytes(), 0U) << "in time";
}

TEST_F(ViewsTest, AnEarlierEndMovesTheTimer) {
  add(Millis(90));
  const std::uint64_t first = add(Millis(20));
  loop.run_for(Millis(30));
  EXPECT_EQ(ended, std::vector{first});
  loop.run_for(Millis(70));
  EXPECT_EQ(ended.size(), 2U);
}

TEST_F(ViewsTest, AViewNobodyWasToldOfLeavesNoTrace) {
  const std::uint64_t id = add();
  views.withdraw(id);
  views.withdraw(id);
  EXPECT_EQ(ended, std::vector{id});
  EXPECT_EQ(release({id}).error().code, Code::kCorrupt);
}

TEST_F(ViewsTest, NumbersOfExpiredViewsAreBounded) {
  while (views.has_room()) add(Millis(1));
  loop.run_for(Millis(5));
  EXPECT_EQ(ended.size(), Views::kViewsMax);
  EXPECT_FALSE(views.has_room()) << "a client that never gives back gets bytes from here on";
  ASSERT_TRUE(release({1}).has_value());
  EXPECT_TRUE(views.has_room());
}

TEST_F(ViewsTest, AllEndWithTheConnection) {
  add();
  add(Millis(1));
  loop.run_for(Millis(5));
  views.clear();
  EXPECT_EQ(ended.size(), 2U);
  EXPECT_EQ(counters.views.value(), 0U);
  EXPECT_EQ(held_bytes(), 0U);
}

}  // namespace
}  // namespace kvd::node
