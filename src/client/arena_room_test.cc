#include "client/arena_room.h"

#include <unistd.h>

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace kvd::client {
namespace {

constexpr std::uint64_t kArenaBytes = std::uint64_t{16} << 20;

ArenaRoom make_room(std::uint64_t bytes = kArenaBytes) {
  const auto depot = *net::Arena::create(bytes);
  return ArenaRoom(*net::Arena::map(io::PrivateFd(io::UniqueFd(::dup(depot->fd()))), bytes));
}

TEST(ArenaRoom, StretchesThatAreUnderWayDoNotOverlap) {
  ArenaRoom room = make_room();
  std::minstd_rand random(5);
  struct Stretch {
    std::uint64_t begin, end;
  };
  std::deque<Stretch> under_way;
  std::uint64_t taken = 0;
  std::uint64_t refused = 0;
  for (int step = 0; step < 20'000; ++step) {
    const std::uint64_t bytes = 1 + random() % (random() % 4 == 0 ? room.stretch_max() : 100'000);
    if (const auto at = room.begin(bytes); !at) {
      ++refused;
      ASSERT_FALSE(under_way.empty()) << "an empty arena has room";
    } else {
      ASSERT_LE(*at + bytes, kArenaBytes);
      ASSERT_EQ(room.stretch().size(), bytes);
      for (const Stretch& other : under_way) ASSERT_TRUE(*at >= other.end || *at + bytes <= other.begin);
      if (random() % 8 == 0) {
        room.drop();
      } else {
        room.send();
        under_way.push_back({*at, *at + bytes});
      }
    }
    for (std::uint64_t n = random() % 3; n > 0 && !under_way.empty(); --n) {
      under_way.pop_front();
      ++taken;
    }
    ASSERT_TRUE(room.taken(taken).has_value());
    ASSERT_EQ(room.under_way(), under_way.size());
  }
  EXPECT_GT(refused, 100U) << "it was full now and then";
}

TEST(ArenaRoom, SmallStretchesUseTheSameFewMegabytesAgain) {
  ArenaRoom room = make_room();
  std::uint64_t end = 0;
  for (std::uint64_t step = 1; step < 1000; ++step) {
    const auto at = room.begin(200'000);
    ASSERT_TRUE(at.has_value());
    end = std::max(end, *at + 200'000);
    room.send();
    ASSERT_TRUE(room.taken(step - std::min<std::uint64_t>(step, 4)).has_value());
  }
  EXPECT_LE(end, ArenaRoom::kBytesInUse);
}

TEST(ArenaRoom, WhatWasNotSentIsNotTaken) {
  ArenaRoom room = make_room();
  const auto code = [&](std::uint64_t messages) {
    const Status taken = room.taken(messages);
    return taken ? Code::kOk : taken.error().code;
  };
  EXPECT_EQ(code(1), Code::kCorrupt);
  ASSERT_TRUE(room.begin(100).has_value());
  EXPECT_EQ(code(1), Code::kCorrupt) << "it is being made";
  room.send();
  EXPECT_EQ(code(2), Code::kCorrupt);
  EXPECT_EQ(code(1), Code::kOk);
  EXPECT_EQ(code(1), Code::kOk) << "said again";
  EXPECT_EQ(code(0), Code::kCorrupt);
  EXPECT_EQ(code(~std::uint64_t{0}), Code::kCorrupt);
}

}  // namespace
}  // namespace kvd::client
