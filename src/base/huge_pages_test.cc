// Tests of memory in huge pages: aligned, large enough, and good for standard resources on top of it.
#include "base/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
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

// A part that was written, one that others write to meanwhile, one that was read, and one that nobody touches.
TEST(HugePages, MemoryThatIsPopulatedKeepsItsBytes) {
  constexpr std::size_t kBytes = 8 * HugePages::kBytes;
  void* const mapped =
      ::mmap(nullptr, kBytes + HugePages::kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  ::madvise(mapped, kBytes + HugePages::kBytes, MADV_NOHUGEPAGE);
  auto* const memory = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(mapped) + HugePages::kBytes - 1) /
                                                    HugePages::kBytes * HugePages::kBytes);
  for (std::size_t at = 0; at < kBytes / 4; at += 5'000) memory[at] = std::byte(at % 251);
  for (std::size_t at = kBytes / 2; at < kBytes * 3 / 4; at += 5'000) ASSERT_EQ(memory[at], std::byte(0));
  std::thread populates([&] { populate_huge(memory, kBytes, {}); });
  for (std::size_t at = kBytes / 4; at < kBytes / 2; at += 5'000) memory[at] = std::byte(at % 251);
  populates.join();
  for (std::size_t at = 0; at < kBytes / 4; at += 5'000) ASSERT_EQ(memory[at], std::byte(at % 251)) << at;
  for (std::size_t at = kBytes / 4; at < kBytes / 2; at += 5'000) ASSERT_EQ(memory[at], std::byte(at % 251)) << at;
  std::vector<unsigned char> there(kBytes / 4096);
  ASSERT_EQ(::mincore(memory, kBytes, there.data()), 0);
  EXPECT_TRUE(std::ranges::all_of(there, [](unsigned char page) { return (page & 1) != 0; }));
  ::munmap(mapped, kBytes + HugePages::kBytes);
}

}  // namespace
}  // namespace kvd
