// Tests of opening stores of many segments and of many records in one, and of lookups of many records at once.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "store/footer_reader.h"
#include "store/format.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

// Small records with foreign keys: 2 pages each.
void use_small_records(StoreKit& kit, std::uint64_t segment_bytes, std::uint64_t segments) {
  kit.name_space = namespace_of(1, 64);
  kit.options.segment_bytes = segment_bytes;
  kit.options.flash_bytes = kHeadBytes + segments * segment_bytes;
  kit.options.index_records_max = 8'192;
}

void put_all(StoreKit& kit, std::uint64_t records) {
  for (std::uint64_t n = 0; n < records; ++n) ASSERT_TRUE(kit.put(n, 1, AckLevel::kWritten)) << n;
}

TEST(StoreRecovery, FootersLongerThanOneReadAreReadWhole) {
  StoreKit kit;
  use_small_records(kit, 8 << 20, 6);
  constexpr std::uint64_t kRecords = 1'900;  // three segments of some 600: each is a frame of its own
  ASSERT_TRUE(kit.open()) << kit.why;
  put_all(kit, kRecords);
  ASSERT_TRUE(kit.reopen()) << kit.why;
  static_assert(footer_bytes(1, 1, 600) > FooterReader::kTailBytes);
  EXPECT_EQ(kit.stats().recovered_records.value(), kRecords);
  EXPECT_EQ(kit.stats().recovered_dropped.value(), 0u);
  for (std::uint64_t n = 0; n < kRecords; n += 31) EXPECT_EQ(kit.get(n), 1u) << n;
}

TEST(StoreRecovery, MoreSegmentsThanAreReadAhead) {
  StoreKit kit;
  constexpr std::uint64_t kSegments = 3 * FooterReader::kAhead;
  use_small_records(kit, 64 << 10, kSegments);
  ASSERT_TRUE(kit.open()) << kit.why;
  constexpr std::uint64_t kRecords = kSegments * 2;  // of four that fit into one
  put_all(kit, kRecords);
  ASSERT_TRUE(kit.reopen()) << kit.why;
  EXPECT_EQ(kit.stats().recovered_records.value(), kRecords);
  for (std::uint64_t n = 0; n < kRecords; n += 7) EXPECT_EQ(kit.get(n), 1u) << n;
}

TEST(StoreRecovery, NewerCopyWinsAlsoWhereSegmentsOverlap) {
  StoreKit kit;
  use_small_records(kit, 64 << 10, 16);
  ASSERT_TRUE(kit.open()) << kit.why;
  for (std::uint64_t version = 1; version <= 6; ++version) {
    for (std::uint64_t n = 0; n < 8; ++n) {
      kit.remove(n);
      ASSERT_TRUE(kit.put(n, version, AckLevel::kWritten));
    }
  }
  kit.remove(3);
  ASSERT_TRUE(kit.reopen()) << kit.why;
  for (std::uint64_t n = 0; n < 8; ++n) EXPECT_EQ(kit.get(n), n == 3 ? 0u : 6u) << n;
}

TEST(StoreRecovery, LookupsTogetherSayWhatLookupsSay) {
  StoreKit kit;
  use_small_records(kit, 64 << 10, 32);
  ASSERT_TRUE(kit.open()) << kit.why;
  put_all(kit, 60);
  ASSERT_TRUE(kit.reopen()) << kit.why;
  for (std::uint64_t n = 0; n < 60; n += 3) ASSERT_EQ(kit.get(n), 1u);  // into the pool
  std::vector<block::RecordId> ids;
  for (std::uint64_t n = 0; n < 100; ++n) ids.push_back(id_of(n, n == 50 ? 7 : 0));  // absent from 60 on; no group 7
  std::vector<Tier> tiers(ids.size(), Tier::kNone);
  kit.store->lookup_all(kit.ns, ids, tiers);
  for (std::uint64_t n = 0; n < ids.size(); ++n) EXPECT_EQ(tiers[n], kit.store->lookup(kit.ns, ids[n])) << n;
  EXPECT_EQ(tiers[0], Tier::kPool);
  EXPECT_EQ(tiers[1], Tier::kFlash);
  EXPECT_EQ(tiers[50], Tier::kNone);
  EXPECT_EQ(tiers[60], Tier::kNone);
}

}  // namespace
}  // namespace kvd::store
