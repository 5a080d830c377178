// Tests of FlashIndex: against a map under random use, at its cap, and when segments are given up.
#include "store/index.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvd::store {
namespace {

IndexEntry random_entry(Random& random, std::uint32_t segments) {
  IndexEntry entry;
  entry.segment = static_cast<std::uint32_t>(random.below(segments));
  entry.offset = static_cast<std::uint32_t>(1 + random.below((1u << 16) - 1));
  entry.pages = static_cast<std::uint32_t>(1 + random.below(1u << 14));
  entry.interleave = static_cast<std::uint32_t>(random.below(4));
  entry.checksum = static_cast<std::uint32_t>(random.next());
  return entry;
}

TEST(FlashIndex, KeepsEveryFieldAtItsLimits) {
  FlashIndex index(10);
  const IndexEntry most{(1u << 20) - 1, (1u << 16) - 1, 1u << 14, 3, UINT32_MAX};
  const IndexEntry least{0, 1, 1, 0, 0};
  ASSERT_TRUE(index.insert(~0ull, most));
  ASSERT_TRUE(index.insert(0, least));
  EXPECT_EQ(index.find(~0ull), most);
  EXPECT_EQ(index.find(0), least);
  EXPECT_EQ(index.size(), 2u);
}

TEST(FlashIndex, HoldsAsManyRecordsAsItWasMadeFor) {
  for (const std::uint64_t records : {1u, 7u, 100u, 5'000u, 200'000u}) {
    FlashIndex index(records);
    Random random(records);
    for (std::uint64_t i = 0; i < records; ++i) ASSERT_TRUE(index.insert(random.next(), {1, 1, 1, 0, 0})) << i;
    EXPECT_EQ(index.size(), records);
    EXPECT_LE(index.memory_bytes(), records * 18 + 256);
  }
}

TEST(FlashIndex, IsPopulatedBesideInsertionsAndWhenItIsGone) {
  constexpr std::uint64_t kRecords = 500'000;
  auto index = std::make_unique<FlashIndex>(kRecords);
  const auto populate = index->populate();
  std::jthread populates(populate);
  Random random(1), again(1);
  for (std::uint64_t i = 0; i < kRecords; ++i) ASSERT_TRUE(index->insert(random.next(), {1, 1, 1, 0, 0})) << i;
  populates.join();
  for (std::uint64_t i = 0; i < kRecords; ++i) ASSERT_TRUE(index->find(again.next()).has_value()) << i;
  index.reset();
  populate({});
}

TEST(FlashIndex, AgreesWithAMapUnderRandomUseAroundItsCap) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    constexpr std::uint64_t kRecords = 2'000;
    FlashIndex index(kRecords);
    std::unordered_map<std::uint64_t, IndexEntry> model;
    std::vector<std::uint64_t> keys(kRecords * 5 / 4);
    Random random(seed);
    for (auto& key : keys) key = random.next();
    for (int i = 0; i < 100'000; ++i) {
      const std::uint64_t key = keys[random.below(keys.size())];
      const auto known = model.find(key);
      if (random.chance(5, 6)) {
        const auto entry = random_entry(random, 8);
        if (index.insert(key, entry)) {
          model[key] = entry;
        } else {
          ASSERT_EQ(known, model.end()) << "a known record always has a place";
          ASSERT_GE(model.size(), kRecords) << "there is always a place up to the cap";
        }
      } else if (known != model.end()) {
        ASSERT_EQ(index.erase(key, known->second.segment, known->second.offset ^ 1), 0u);
        ASSERT_EQ(index.erase(key, known->second.segment, known->second.offset), known->second.pages);
        model.erase(known);
      } else {
        ASSERT_EQ(index.erase(key, 0, 1), 0u);
      }
      if (i % 1'000 != 0) continue;
      ASSERT_EQ(index.size(), model.size());
      for (const auto k : keys) {
        const auto at = model.find(k);
        ASSERT_EQ(index.find(k), at == model.end() ? std::nullopt : std::optional(at->second));
      }
    }
  }
}

TEST(FlashIndex, ErasesASegmentInSlices) {
  FlashIndex index(10'000);
  Random random(3);
  std::vector<std::pair<std::uint64_t, std::uint32_t>> keys;
  for (int i = 0; i < 9'000; ++i) {
    const auto entry = random_entry(random, 5);
    keys.emplace_back(random.next(), entry.segment);
    ASSERT_TRUE(index.insert(keys.back().first, entry));
  }
  std::uint64_t erased = 0;
  for (std::uint64_t at = 0; at < index.buckets(); at += 100) erased += index.erase_segment(2, at, 100);
  EXPECT_EQ(index.size(), 9'000 - erased);
  for (const auto& [key, segment] : keys) ASSERT_EQ(index.find(key).has_value(), segment != 2);
}

// Insertions between two slices move entries; those of the segment must not get to where the sweep has been.
TEST(FlashIndex, ErasesASegmentInSlicesWhileOthersAreInserted) {
  constexpr std::uint64_t kRecords = 50'000;
  constexpr std::uint64_t kSlice = 50;
  FlashIndex index(kRecords);
  Random random(5);
  std::vector<std::pair<std::uint64_t, IndexEntry>> entries;
  const auto insert = [&](std::uint32_t segment) {
    IndexEntry entry = random_entry(random, 1);
    entry.segment = segment;
    entries.emplace_back(random.next(), entry);
    return index.insert(entries.back().first, entry);
  };
  while (index.size() < kRecords) ASSERT_TRUE(insert(static_cast<std::uint32_t>(random.below(8))));
  const auto held = static_cast<std::uint64_t>(
      std::ranges::count_if(entries, [](const auto& entry) { return entry.second.segment % 2 == 1; }));
  for (const std::uint32_t segment : {1U, 3U, 5U, 7U}) index.begin_sweep(segment);
  std::uint64_t erased = 0;
  for (std::uint64_t at = 0; at < index.buckets(); at += kSlice) {
    for (const std::uint32_t segment : {1U, 3U, 5U, 7U}) erased += index.erase_segment(segment, at, kSlice);
    for (const std::uint64_t until = std::min(kRecords, index.size() + 120); index.size() < until;)
      ASSERT_TRUE(insert(8));
  }
  for (const std::uint32_t segment : {1U, 3U, 5U, 7U}) {
    EXPECT_EQ(index.erase_segment(segment, 0, index.buckets()), 0U) << segment;
    erased += index.end_sweep(segment);
  }
  EXPECT_EQ(erased, held);
  EXPECT_EQ(index.size(), entries.size() - held);
  for (const auto& [hash, entry] : entries)
    ASSERT_EQ(index.find(hash), entry.segment % 2 == 1 ? std::nullopt : std::optional(entry));
}

}  // namespace
}  // namespace kvd::store
