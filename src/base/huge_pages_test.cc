// Tests of memory in huge pages: aligned, large enough, and good for standard resources on top of it.
#include "base/huge_pages.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

namespace kvd {
namespace {

TEST(HugePages, GivesWholePages) {
  HugePages pages;
  for (const std::size_t bytes : {std::size_t{1}, HugePages::kBytes, HugePages::kBytes + 1}) {
    void* const memory = pages.allocate(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % HugePages::kBytes, 0U) << bytes;
    std::memset(memory, 1, bytes);
    pages.deallocate(memory, bytes);
  }
}

TEST(HugePages, CarriesPoolsThatGrowAndShrink) {
  HugePages pages;
  std::pmr::monotonic_buffer_resource arena(HugePages::kBytes, &pages);
  std::pmr::unsynchronized_pool_resource pools(&arena);
  std::pmr::vector<std::pmr::vector<int>> parts(100, &pools);
  for (int i = 0; i < 100'000; ++i) {
    parts[static_cast<std::size_t>(i % 100)].push_back(i);
    if (i % 1000 == 0) parts[static_cast<std::size_t>(i / 1000)] = {};
  }
  for (const auto& part : parts) {
    for (std::size_t i = 1; i < part.size(); ++i) ASSERT_EQ(part[i], part[i - 1] + 100);
  }
}

}  // namespace
}  // namespace kvd
