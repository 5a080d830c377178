// Tests of WaitingHashes: the set equals a map with counts, whatever lies beside each other.
#include "store/waiting_hashes.h"

#include <iterator>
#include <map>

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvd::store {
namespace {

std::uint64_t hash_of(std::uint64_t tag) { return tag << 32 | 7; }

TEST(WaitingHashes, EqualsAMapWithCounts) {
  WaitingHashes hashes;
  hashes.reserve();
  std::map<std::uint64_t, int> expected;
  Random random(1);
  // Runs of neighbours, some around the end of the table, and others a table's length apart.
  const auto some = [&] {
    const std::uint64_t place = 2 * WaitingHashes::kMax - 8 + random.below(16);
    return hash_of(place + random.below(4) * 2 * WaitingHashes::kMax);
  };
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t hash = some();
    if (random.chance(1, 2)) {
      hashes.add(hash);
      ++expected[hash];
    } else if (!expected.empty()) {
      const auto one = std::next(expected.begin(), static_cast<std::ptrdiff_t>(random.below(expected.size())));
      hashes.remove(one->first);
      if (--one->second == 0) expected.erase(one);
    }
    const std::uint64_t asked = some();
    ASSERT_EQ(hashes.contains(asked), expected.contains(asked)) << "step " << i;
  }
  for (const auto& [hash, count] : expected)
    for (int i = 0; i < count; ++i) hashes.remove(hash);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(hashes.contains(some()));
}

TEST(WaitingHashes, BeyondItsBoundAllAreSaidToWait) {
  WaitingHashes hashes;
  hashes.reserve();
  for (std::uint64_t n = 0; n < WaitingHashes::kMax; ++n) hashes.add(hash_of(3 * n));
  EXPECT_FALSE(hashes.contains(hash_of(1)));
  hashes.add(hash_of(0));  // it has a place
  EXPECT_FALSE(hashes.contains(hash_of(1)));
  hashes.add(hash_of(1));
  EXPECT_TRUE(hashes.contains(hash_of(2)));
  hashes.remove(hash_of(3));
  EXPECT_TRUE(hashes.contains(hash_of(2)));
  hashes.remove(hash_of(1));
  EXPECT_FALSE(hashes.contains(hash_of(1)));
  EXPECT_FALSE(hashes.contains(hash_of(3)));
  EXPECT_TRUE(hashes.contains(hash_of(0)));
}

TEST(WaitingHashes, WithoutMemoryAllAreSaidToWaitAsLongAsOneDoes) {
  WaitingHashes hashes;
  EXPECT_FALSE(hashes.contains(1));
  hashes.add(1);
  EXPECT_TRUE(hashes.contains(hash_of(2)));
  hashes.remove(1);
  EXPECT_FALSE(hashes.contains(1));
}

}  // namespace
}  // namespace kvd::store
