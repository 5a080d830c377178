#include "policy/placement.h"

#include <gtest/gtest.h>

namespace kvd::policy {
namespace {

std::vector<std::uint64_t> give(Placement& placement, std::size_t devices, std::uint32_t can, int frames) {
  std::vector<std::uint64_t> given(devices);
  for (int i = 0; i < frames; ++i) {
    const auto device = placement.next(can);
    placement.wrote(*device, 1);
    ++given[*device];
  }
  return given;
}

TEST(Placement, GivesTurns) {
  Placement placement({100, 100});
  EXPECT_EQ(placement.next(0b11), 0U);
  placement.wrote(0, 1);
  EXPECT_EQ(placement.next(0b11), 1U);
}

TEST(Placement, GivesBySize) {
  Placement placement({1'000, 3'000});
  EXPECT_EQ(give(placement, 2, 0b11, 400), (std::vector<std::uint64_t>{100, 300}));
}

TEST(Placement, NamesOnlyWhoCanTakeIt) {
  Placement placement({100, 100, 100});
  EXPECT_EQ(placement.next(0), std::nullopt);
  EXPECT_EQ(give(placement, 3, 0b100, 5), (std::vector<std::uint64_t>{0, 0, 5}));
}

TEST(Placement, OneThatWasAwayDoesNotGetAllThatItHasMissed) {
  Placement placement({3'200, 3'200});
  EXPECT_EQ(give(placement, 2, 0b01, 1'000), (std::vector<std::uint64_t>{1'000, 0}));
  const auto given = give(placement, 2, 0b11, 300);
  EXPECT_EQ(given[1] - given[0], 100U);  // 3,200 / 32
}

}  // namespace
}  // namespace kvd::policy
