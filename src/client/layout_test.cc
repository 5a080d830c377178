#include "client/layout.h"

#include <array>
#include <numeric>

#include <gtest/gtest.h>

#include "base/random.h"
#include "block/checksum.h"

namespace kvd::client {
namespace {

using Offsets = std::vector<std::uint64_t>;

struct Memory {
  std::vector<std::byte> bytes;
  explicit Memory(std::size_t n) : bytes(n) {
    for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251);
  }
  MutableBytes all() { return bytes; }
};

Result<Layout> make(Memory& memory, const Offsets& layers, const Offsets& blocks, std::span<const kvd::Run> runs,
                    std::uint32_t slab_bytes) {
  const Placement placement{.region = {}, .layer_offset = layers, .block_offset = blocks, .runs = runs};
  return Layout::make(memory.all(), placement, layers.size(), blocks.size(), slab_bytes);
}

// The bytes that a walk visits, taken in steps of random size.
std::vector<std::byte> walk_all(SlabWalk walk, std::uint64_t seed, std::size_t iovecs) {
  Random random(seed);
  std::vector<std::byte> seen;
  std::vector<iovec> out(iovecs);
  while (walk.left() > 0) {
    const auto gathered = walk.gather(out, 1 + random.below(200));
    EXPECT_GT(gathered.bytes, 0U);
    std::size_t sum = 0;
    std::size_t use = 1 + random.below(gathered.bytes);
    const std::size_t used = use;
    for (std::size_t i = 0; i < gathered.count; ++i) {
      sum += out[i].iov_len;
      const auto* at = static_cast<const std::byte*>(out[i].iov_base);
      const std::size_t n = std::min(use, out[i].iov_len);
      seen.insert(seen.end(), at, at + n);
      use -= n;
    }
    EXPECT_EQ(sum, gathered.bytes);
    walk.advance(used, [](std::size_t, std::uint32_t) {});
  }
  return seen;
}

TEST(Layout, RefusesArraysOfTheWrongLength) {
  Memory memory(1000);
  const Offsets two{0, 100};
  const Placement placement{.region = {}, .layer_offset = two, .block_offset = two, .runs = {}};
  EXPECT_EQ(Layout::make(memory.all(), placement, 3, 2, 10).error().code, Code::kInvalid);
  EXPECT_EQ(Layout::make(memory.all(), placement, 2, 1, 10).error().code, Code::kInvalid);
  EXPECT_TRUE(Layout::make(memory.all(), placement, 2, 2, 10).has_value());
}

TEST(Layout, RefusesWhatLeavesTheRegion) {
  Memory memory(1000);
  EXPECT_TRUE(make(memory, {0, 500}, {0, 400}, {}, 100).has_value());
  EXPECT_FALSE(make(memory, {0, 500}, {0, 401}, {}, 100).has_value());
  EXPECT_FALSE(make(memory, {0, UINT64_MAX}, {0, 2}, {}, 100).has_value());
  EXPECT_FALSE(make(memory, {UINT64_MAX - 50}, {51}, {}, 100).has_value());
  EXPECT_FALSE(make(memory, {0}, {0}, {}, 1001).has_value());
}

TEST(Layout, RefusesRunsThatAreNoSlab) {
  Memory memory(1000);
  const auto refused = [&](kvd::Run run) { return !make(memory, {0}, {0}, std::array{run}, 100).has_value(); };
  EXPECT_TRUE(refused({.offset = 0, .stride = 0, .count = 0, .length = 100}));
  EXPECT_TRUE(refused({.offset = 0, .stride = 0, .count = 1, .length = 0}));
  EXPECT_TRUE(refused({.offset = 0, .stride = 0, .count = 1, .length = 99}));
  EXPECT_TRUE(refused({.offset = 0, .stride = 0, .count = 1, .length = 101}));
  EXPECT_TRUE(refused({.offset = 0, .stride = 49, .count = 2, .length = 50}));
  EXPECT_TRUE(refused({.offset = 901, .stride = 0, .count = 1, .length = 100}));
  EXPECT_TRUE(refused({.offset = 0, .stride = 951, .count = 2, .length = 50}));
  EXPECT_TRUE(refused({.offset = UINT64_MAX, .stride = 0, .count = 1, .length = 100}));
  EXPECT_TRUE(refused({.offset = 0, .stride = UINT64_MAX / 2, .count = 4, .length = 25}));
  EXPECT_TRUE(refused({.offset = 0, .stride = UINT32_MAX, .count = UINT32_MAX, .length = UINT32_MAX}));
  EXPECT_FALSE(refused({.offset = 0, .stride = 900, .count = 2, .length = 50}));
}

TEST(SlabWalk, JoinsPiecesThatTouch) {
  Memory memory(10'000);
  const std::array runs{kvd::Run{.offset = 0, .stride = 25, .count = 2, .length = 25},
                        kvd::Run{.offset = 50, .stride = 0, .count = 1, .length = 50}};
  const auto layout = make(memory, {0}, {0, 100, 200, 1000}, runs, 100);
  ASSERT_TRUE(layout.has_value());
  const std::array<std::uint32_t, 4> keys{0, 1, 2, 3};
  const SlabWalk walk(*layout, 0, 1, keys);
  std::array<iovec, 16> out{};
  const auto gathered = walk.gather(out, SIZE_MAX);
  EXPECT_EQ(gathered.count, 2U);
  EXPECT_EQ(gathered.bytes, 400U);
  EXPECT_EQ(out[0].iov_len, 300U);
  EXPECT_EQ(out[1].iov_base, memory.bytes.data() + 1000);
}

TEST(SlabWalk, VisitsEveryByteInWireOrderWhateverTheSteps) {
  Memory memory(20'000);
  // K rows 40 bytes apart and V rows elsewhere: 3 x 8 + 2 x 13 = 50 bytes a slab.
  const std::array runs{kvd::Run{.offset = 5, .stride = 40, .count = 3, .length = 8},
                        kvd::Run{.offset = 3000, .stride = 13, .count = 2, .length = 13}};
  const Offsets layers{0, 200, 6000};
  const Offsets blocks{400, 0, 9000, 130};
  const auto layout = make(memory, layers, blocks, runs, 50);
  ASSERT_TRUE(layout.has_value());
  const std::array<std::uint32_t, 3> keys{0, 2, 3};
  std::vector<std::byte> expected;
  for (const std::size_t layer : {1U, 2U}) {
    for (const std::uint32_t key : keys) {
      const std::byte* slab = memory.bytes.data() + layers[layer] + blocks[key];
      for (int i = 0; i < 3; ++i) expected.insert(expected.end(), slab + 5 + 40 * i, slab + 13 + 40 * i);
      expected.insert(expected.end(), slab + 3000, slab + 3026);
    }
  }
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_EQ(walk_all(SlabWalk(*layout, 1, 2, keys), seed, 1 + seed % 9), expected) << "seed " << seed;
  }
}

TEST(Layout, WritesASlabInStepsOfAnySizeAndHashesWhatItWrote) {
  Memory memory(20'000);
  const std::array runs{kvd::Run{.offset = 5, .stride = 40, .count = 3, .length = 8},
                        kvd::Run{.offset = 3000, .stride = 13, .count = 2, .length = 13}};
  const auto layout = make(memory, {0, 6000}, {400, 9000}, runs, 50);
  ASSERT_TRUE(layout.has_value());
  const std::array<std::uint32_t, 1> keys{1};
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    std::vector<std::byte> slab(50);
    for (std::byte& byte : slab) byte = static_cast<std::byte>(random.next());
    const std::vector<std::byte> before = memory.bytes;
    block::SlabHasher hasher(77, 9, 50);
    for (std::uint32_t at = 0; at < 50;) {
      const auto step = static_cast<std::uint32_t>(1 + random.below(50 - at));
      layout->write(1, 1, at, Bytes(slab).subspan(at, step), seed % 2 == 0 ? &hasher : nullptr, seed % 3 == 0);
      at += step;
    }
    EXPECT_EQ(walk_all(SlabWalk(*layout, 1, 1, keys), seed, 5), slab);
    EXPECT_TRUE(seed % 2 == 1 || hasher.finish() == block::slab_checksum(77, 9, slab));
    std::size_t changed = 0;
    for (std::size_t i = 0; i < before.size(); ++i) changed += before[i] != memory.bytes[i] ? 1 : 0;
    EXPECT_LE(changed, 50U) << "nothing beside the slab";
  }
}

TEST(SlabWalk, ReportsEachCompletedSlabOnceAndInOrder) {
  Memory memory(10'000);
  const auto layout = make(memory, {0, 1000}, {0, 100, 200}, {}, 100);
  const std::array<std::uint32_t, 2> keys{0, 2};
  SlabWalk walk(*layout, 0, 2, keys);
  std::vector<std::pair<std::size_t, std::uint32_t>> slabs;
  const auto on_slab = [&](std::size_t layer, std::uint32_t key) { slabs.emplace_back(layer, key); };
  walk.advance(99, on_slab);
  EXPECT_TRUE(slabs.empty());
  walk.advance(1, on_slab);
  walk.advance(250, on_slab);
  walk.advance(50, on_slab);
  EXPECT_EQ(walk.left(), 0U);
  EXPECT_EQ(slabs, (std::vector<std::pair<std::size_t, std::uint32_t>>{{0, 0}, {0, 2}, {1, 0}, {1, 2}}));
}

TEST(SlabWalk, APartBeginsAtAnyKeyAndEndsAtAnySlab) {
  Memory memory(10'000);
  const auto layout = make(memory, {0, 1000, 2000}, {0, 100, 200}, {}, 100);
  const std::array<std::uint32_t, 3> keys{0, 1, 2};
  const std::vector<std::byte> all = walk_all(SlabWalk(*layout, 0, 3, keys), 1, 8);
  for (std::size_t first = 0; first < 9; ++first) {
    for (std::size_t slabs = 1; first + slabs <= 9; ++slabs) {
      const auto part = walk_all(SlabWalk::part(*layout, first / 3, first % 3, slabs, keys), first, 8);
      EXPECT_TRUE(std::ranges::equal(part, Bytes(all).subspan(first * 100, slabs * 100)));
    }
  }
}

// Long ones are hashed page by page.
TEST(Layout, ChecksumOfASlabInOnePieceIsThatOfItsBytes) {
  Memory memory(100'000);
  Random random(1);
  for (std::byte& byte : memory.bytes) byte = static_cast<std::byte>(random.next());
  for (const std::uint32_t slab_bytes : {1U, 100U, 4095U, 4096U, 4097U, 8192U, 65536U, 70'001U}) {
    const auto layout = make(memory, {3}, {7}, {}, slab_bytes);
    const Bytes slab = Bytes(memory.bytes).subspan(10, slab_bytes);
    EXPECT_EQ(layout->checksum(0, 0, 42, 9), block::slab_checksum(42, 9, slab)) << slab_bytes;
  }
}

TEST(Layout, ChecksumOfAStridedSlabIsThatOfItsBytes) {
  Memory memory(10'000);
  const std::array runs{kvd::Run{.offset = 1, .stride = 300, .count = 4, .length = 20},
                        kvd::Run{.offset = 5000, .stride = 0, .count = 1, .length = 20}};
  const auto layout = make(memory, {0}, {7}, runs, 100);
  const std::array<std::uint32_t, 1> keys{0};
  const std::vector<std::byte> bytes = walk_all(SlabWalk(*layout, 0, 1, keys), 1, 8);
  EXPECT_EQ(layout->checksum(0, 0, 42, 9), block::slab_checksum(42, 9, bytes));
  EXPECT_NE(layout->checksum(0, 0, 42, 8), block::slab_checksum(42, 9, bytes));
}

}  // namespace
}  // namespace kvd::client
