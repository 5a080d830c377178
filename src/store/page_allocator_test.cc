// Tests of PageAllocator: best fit, joining, and random use against a bitmap.
#include "store/page_allocator.h"

#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvd::store {
namespace {

TEST(PageAllocator, TakesTheSmallestHoleThatFits) {
  PageAllocator pages(100);
  EXPECT_EQ(pages.allocate(10), 0u);
  EXPECT_EQ(pages.allocate(5), 10u);
  EXPECT_EQ(pages.allocate(20), 15u);
  EXPECT_EQ(pages.allocate(1), 35u);
  pages.free(0, 10);
  pages.free(15, 20);
  EXPECT_EQ(pages.allocate(8), 0u);
  EXPECT_EQ(pages.allocate(20), 15u);
  EXPECT_EQ(pages.largest_free(), 64u);
}

TEST(PageAllocator, JoinsNeighbours) {
  PageAllocator pages(30);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(pages.allocate(10), i * 10);
  EXPECT_FALSE(pages.allocate(1).has_value());
  pages.free(0, 10);
  pages.free(20, 10);
  EXPECT_EQ(pages.extents(), 2u);
  pages.free(10, 10);
  EXPECT_EQ(pages.extents(), 1u);
  EXPECT_EQ(pages.allocate(30), 0u);
}

TEST(PageAllocatorDeathTest, NoticesADoubleFree) {
  PageAllocator pages(30);
  EXPECT_EQ(pages.allocate(10), 0u);
  pages.free(0, 10);
  EXPECT_DEATH(pages.free(0, 10), "check failed");
}

TEST(PageAllocator, AgreesWithABitmapUnderRandomUse) {
  constexpr std::uint32_t kPages = 500;
  PageAllocator pages(kPages);
  std::vector<bool> used(kPages);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> held;
  Random random(5);
  for (int i = 0; i < 50'000; ++i) {
    if (random.chance(1, 2)) {
      const auto n = static_cast<std::uint32_t>(1 + random.below(60));
      const auto first = pages.allocate(n);
      if (!first) {
        ASSERT_LT(pages.largest_free(), n);
        continue;
      }
      for (std::uint32_t p = *first; p < *first + n; ++p) {
        ASSERT_FALSE(used[p]);
        used[p] = true;
      }
      held.emplace_back(*first, n);
    } else if (!held.empty()) {
      const auto at = random.below(held.size());
      const auto [first, n] = held[at];
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
      pages.free(first, n);
      for (std::uint32_t p = first; p < first + n; ++p) used[p] = false;
    }
    std::uint32_t free = 0, longest = 0, run = 0, extents = 0;
    for (std::uint32_t p = 0; p < kPages; ++p) {
      run = used[p] ? 0 : run + 1;
      if (run == 1) ++extents;
      free += used[p] ? 0 : 1;
      longest = std::max(longest, run);
    }
    ASSERT_EQ(pages.free_pages(), free);
    ASSERT_EQ(pages.largest_free(), longest);
    ASSERT_EQ(pages.extents(), extents) << "neighbours are joined";
  }
}

}  // namespace
}  // namespace kvd::store
