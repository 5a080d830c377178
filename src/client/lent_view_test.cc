#include "client/lent_view.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "io/sim/sim_loop.h"

namespace kvd::client {
namespace {

// A slab of the depot's memory may lie right behind the view's own memory.
TEST(LentView, WhatLiesBehindItsOwnMemoryIsNoCopy) {
  constexpr std::uint32_t kOwnSlab = 64;
  io::SimClock clock;
  io::SimLoop loop(clock);
  const auto desk = std::make_shared<LoanDesk>(loop, [] {});
  auto copies = std::make_unique<std::byte[]>(3 * kOwnSlab);
  const std::byte* const at = copies.get();
  LentView::Slabs slabs{.places = {at, at + 2 * kOwnSlab},
                        .keys = 2,
                        .slab_bytes = kOwnSlab,
                        .checksums = {1, 1},
                        .seeds = {0, 0},
                        .key_bytes = std::vector<std::byte>(2)};
  const LentView view(std::move(slabs), std::move(copies),
                      {std::make_shared<Loan>(desk, nullptr, nullptr, loop.now())});
  EXPECT_TRUE(view.verify(0, 0)) << "it was when it was made";
  EXPECT_FALSE(view.verify(1, 0));
  EXPECT_EQ(desk->damaged_slabs(), 1U);
  desk->close();
}

}  // namespace
}  // namespace kvd::client
