// What is hidden while a store recovers, and what that costs.
#include "store/hidden_hashes.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "store/tombstones.h"

namespace kvd::store {
namespace {

TEST(HiddenHashes, HoldsWhatWasAddedUntilItIsCleared) {
  HiddenHashes hidden(1'000);
  Random random(1);
  std::vector<std::uint64_t> hashes;
  for (int i = 0; i < 200; ++i) hashes.push_back(random.next());
  EXPECT_FALSE(hidden.contains(hashes[0]));
  EXPECT_EQ(hidden.memory_bytes(), 0U);
  for (const std::uint64_t hash : hashes) hidden.add(hash);
  for (const std::uint64_t hash : hashes) EXPECT_TRUE(hidden.contains(hash));
  hidden.clear();
  for (const std::uint64_t hash : hashes) EXPECT_FALSE(hidden.contains(hash));
  EXPECT_EQ(hidden.memory_bytes(), 0U);
}

TEST(HiddenHashes, TakesNoMoreMemoryHoweverManyAreAddedAndHidesFewOthers) {
  for (const std::uint64_t records_max : {std::uint64_t{1}, std::uint64_t{4'000'000}, UINT64_MAX}) {
    HiddenHashes hidden(records_max);
    Random random(2);
    const std::size_t added = records_max == 1 ? 256 : Tombstones::kLiveMax;
    for (std::size_t i = 0; i < added; ++i) hidden.add(random.next());
    EXPECT_EQ(hidden.memory_bytes(), records_max == 1 ? 1'024U : 1'048'576U);
    std::size_t others = 0;
    for (int i = 0; i < 10'000; ++i) others += hidden.contains(random.next()) ? 1 : 0;
    EXPECT_LT(others, 10'000U / 25) << records_max;
  }
}

}  // namespace
}  // namespace kvd::store
