// Quotas of tenants: what gives way when one is full, what is refused, and whether the counters are right.
#include <algorithm>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "store/store_impl.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

constexpr std::uint64_t kRecord = 36 << 10;  // of the kit's pool of 1 MiB

class StoreQuotaTest : public ::testing::Test {
 protected:
  StoreQuotaTest() { kit_.options.flash_bytes = 0; }

  // Opens the store; acts for tenant a.
  void open() {
    handles_.clear();
    ASSERT_TRUE(kit_.open()) << kit_.why;
    become("a");
  }
  // Whose records the kit puts and gets from here on.
  void become(const std::string& tenant) {
    Namespace ns = kit_.name_space;
    ns.tenant = tenant;
    const auto [at, added] = handles_.try_emplace(tenant);
    if (added) at->second = *kit_.store->open_namespace(ns);
    kit_.ns = at->second;
  }
  // The same, with demotion that happens for a reason only.
  void open_with_flash() {
    kit_.options.flash_bytes = (4 << 20) + 8 * kit_.options.segment_bytes;
    kit_.options.demote_idle = kit_.options.demote_after = std::chrono::hours(10);
    open();
  }
  void bound(const std::string& tenant, SpaceQuota quota) {
    kit_.store->set_quotas(std::vector<TenantQuota>{{tenant, quota}});
    kit_.loop.run_for(Millis(1));
  }
  void put(std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t n = first; n <= last; ++n) EXPECT_TRUE(kit_.put(n)) << n;
  }
  // Of these records, those that are here.
  [[nodiscard]] std::vector<std::uint64_t> present(std::uint64_t first, std::uint64_t last) const {
    std::vector<std::uint64_t> found;
    for (std::uint64_t n = first; n <= last; ++n)
      if (kit_.lookup(n) != Tier::kNone) found.push_back(n);
    return found;
  }
  [[nodiscard]] TenantFigures figures(const std::string& tenant) const {
    for (const TenantFigures& figures : kit_.store->tenant_figures(100))
      if (figures.tenant == tenant) return figures;
    return {};
  }
  // The same of what flash would serve if the pool had nothing.
  [[nodiscard]] std::vector<std::uint64_t> on_flash(std::uint64_t first, std::uint64_t last) const {
    std::vector<std::uint64_t> found;
    for (std::uint64_t n = first; n <= last; ++n)
      if (impl().flash_bytes_of(kit_.ns, id_of(n)) > 0) found.push_back(n);
    return found;
  }
  // Stores these records one after the other, each on flash before the next.
  void write(std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t n = first; n <= last; ++n) EXPECT_TRUE(kit_.put(n, 1, AckLevel::kWritten)) << n;
  }
  // Opens a store of records of one page with native keys, and stores such.
  void open_small(std::uint64_t pool_bytes) {
    kit_.name_space.groups[0].layers = 1;
    kit_.name_space.groups[0].slab_bytes = kPageBytes;
    kit_.options.pool_bytes = pool_bytes;
    open();
  }
  bool put_native(std::uint64_t n) {
    auto put = kit_.store->begin_put(kit_.ns, id_of(n), {});
    if (!put) return false;
    const std::uint64_t checksum = block::slab_checksum(put->seed(), 0, put->slab(0));
    kit_.store->complete_put(std::move(*put), {&checksum, 1}, AckLevel::kPooled, [](Status) {});
    return true;
  }
  [[nodiscard]] const StoreImpl& impl() const { return static_cast<const StoreImpl&>(*kit_.store); }
  Pin lease(std::uint64_t n) { return kit_.store->pin_for_lease(kit_.ns, id_of(n), UINT64_MAX).pin; }

  using Numbers = std::vector<std::uint64_t>;
  StoreKit kit_;
  std::map<std::string, NamespaceHandle> handles_;
};

TEST_F(StoreQuotaTest, ATenantAtItsQuotaOfThePoolGivesUpItsOwnOldest) {
  open();
  become("b");
  put(1, 10);
  become("a");
  bound("a", {.pool_bytes = 4 * kRecord});
  put(1, 4);
  EXPECT_EQ(kit_.get(1), 1U);
  put(2, 2);  // both are used: now 3 is the oldest
  put(5, 6);
  EXPECT_EQ(present(1, 6), (Numbers{1, 2, 5, 6}));
  EXPECT_EQ(figures("a").pool_bytes, 4 * kRecord);
  EXPECT_EQ(figures("a").pool_evictions, 2U);
  EXPECT_EQ(figures("a").pool_refused, 0U);
  become("b");
  EXPECT_EQ(present(1, 10).size(), 10U);
  EXPECT_EQ(figures("b").pool_bytes, 10 * kRecord);
  EXPECT_EQ(figures("b").quota, SpaceQuota());
}

TEST_F(StoreQuotaTest, AFullPoolAndAnOldNeighbourChangeNothingAboutThat) {
  open();
  become("b");
  put(1, 24);
  become("a");
  bound("a", {.pool_bytes = 4 * kRecord});
  put(1, 20);
  EXPECT_EQ(present(1, 20), (Numbers{17, 18, 19, 20}));
  become("b");
  EXPECT_EQ(present(1, 24).size(), 24U) << "records of one size leave places that the next ones take";
}

TEST_F(StoreQuotaTest, WithAllOfItPinnedAPutIsBusyAtOnce) {
  open();
  bound("a", {.pool_bytes = 2 * kRecord});
  put(1, 2);
  Pin one = lease(1), two = lease(2);
  ASSERT_TRUE(one && two);
  EXPECT_EQ(kit_.put(3).error().code, Code::kBusy);
  EXPECT_EQ(figures("a").pool_refused, 1U);
  EXPECT_EQ(present(1, 3), (Numbers{1, 2}));
  EXPECT_EQ(kit_.store->room_bytes(kit_.ns), 0U);
  become("b");
  put(1, 3);
  become("a");
  kit_.store->unpin_lease(std::move(one));
  EXPECT_EQ(kit_.store->room_bytes(kit_.ns), kRecord);
  put(3, 3);
  EXPECT_EQ(present(1, 3), (Numbers{2, 3}));
  kit_.store->unpin_lease(std::move(two));
}

TEST_F(StoreQuotaTest, ARecordThatNeverFitsEvictsNothing) {
  open();
  put(1, 3);
  bound("a", {.pool_bytes = kRecord - 1});
  EXPECT_EQ(present(1, 3), Numbers{}) << "what is there gives way";
  EXPECT_EQ(kit_.put(1).error().code, Code::kBusy);
  bound("a", {.pool_bytes = 0});
  EXPECT_EQ(kit_.put(1).error().code, Code::kBusy);
  bound("b", {.pool_bytes = 0});
  put(1, 3);
  bound("a", {.pool_bytes = 4 * kRecord});
  Namespace large = namespace_of(4, 50'000, "large");
  large.tenant = "a";
  const NamespaceHandle ns = *kit_.store->open_namespace(large);
  EXPECT_EQ(kit_.store->begin_put(ns, id_of(1), {}).error().code, Code::kBusy);
  EXPECT_EQ(present(1, 3).size(), 3U);
}

TEST_F(StoreQuotaTest, ASmallerQuotaEvictsWhatMayGo) {
  open();
  put(1, 10);
  become("b");
  put(1, 10);
  become("a");
  Pin pin = lease(2);
  bound("a", {.pool_bytes = 3 * kRecord});
  EXPECT_EQ(present(1, 10), (Numbers{2, 9, 10}));
  bound("a", {.pool_bytes = 1});
  EXPECT_EQ(present(1, 10), (Numbers{2}));
  EXPECT_EQ(kit_.get(2), 1U) << "it is pinned, and serves";
  EXPECT_EQ(kit_.put(1).error().code, Code::kBusy);
  kit_.store->unpin_lease(std::move(pin));
  bound("a", {});
  put(3, 8);
  EXPECT_EQ(present(1, 10), (Numbers{2, 3, 4, 5, 6, 7, 8}));
  become("b");
  EXPECT_EQ(present(1, 10).size(), 10U);
}

TEST_F(StoreQuotaTest, MoreThanATurnOfTheLoopMayEvictGoesInSlices) {
  open_small(64 << 20);
  const std::uint64_t many = 3 * Pool::kGivenUpMax;
  for (std::uint64_t n = 1; n <= many; ++n) ASSERT_TRUE(put_native(n));
  kit_.store->set_quotas(std::vector<TenantQuota>{{"a", {.pool_bytes = 4096}}});
  EXPECT_FALSE(put_native(many + 1)) << "a put does not wait for all of them to go";
  EXPECT_EQ(figures("a").pool_evictions, 0U) << "nor do some go for nothing";
  kit_.loop.run_for(Millis(1));
  EXPECT_EQ(figures("a").pool_bytes, 4096U);
  EXPECT_TRUE(put_native(many + 1));
  EXPECT_EQ(present(1, many + 1), (Numbers{many + 1}));
}

TEST_F(StoreQuotaTest, ALargeRecordTakesThePlaceOfVeryManySmallOnes) {
  open_small(128 << 20);
  constexpr std::uint64_t kLayer = 5 << 20, kLarge = 4 * kLayer + kPageBytes;
  const std::uint64_t many = kLarge / kPageBytes;
  ASSERT_GT(many, Pool::kGivenUpMax);
  bound("a", {.pool_bytes = kLarge});
  for (std::uint64_t n = 1; n <= many; ++n) ASSERT_TRUE(put_native(n));
  Namespace large = namespace_of(4, kLayer, "large");
  large.tenant = "a";
  const NamespaceHandle ns = *kit_.store->open_namespace(large);
  EXPECT_TRUE(kit_.store->begin_put(ns, id_of(1), foreign_of(1)));
  EXPECT_EQ(figures("a").pool_evictions, many);
  EXPECT_EQ(figures("a").pool_refused, 0U);
}

TEST_F(StoreQuotaTest, WhatIsPinnedAtASmallerQuotaGoesWhenItMay) {
  open();
  put(1, 4);
  Pin pins[] = {lease(1), lease(2), lease(3)};
  bound("a", {.pool_bytes = kRecord});
  EXPECT_EQ(present(1, 4), (Numbers{1, 2, 3}));
  for (Pin& pin : pins) {
    kit_.store->unpin_lease(std::move(pin));
    kit_.loop.run_for(Millis(1));
  }
  EXPECT_EQ(present(1, 4), (Numbers{3})) << "nobody has put anything";
  EXPECT_EQ(figures("a").pool_bytes, kRecord);
}

TEST_F(StoreQuotaTest, WhatWaitsToBeWrittenAtASmallerQuotaIsWrittenAndGoes) {
  open_with_flash();
  put(1, 4);
  kit_.loop.run_for(std::chrono::minutes(1));
  ASSERT_EQ(kit_.stats().dirty_records.value(), 4U) << "nothing else would have it written";
  bound("a", {.pool_bytes = 2 * kRecord});
  kit_.loop.run_for(Millis(100));
  EXPECT_EQ(figures("a").pool_bytes, 2 * kRecord);
  EXPECT_EQ(on_flash(1, 4).size(), 4U);
  // Also where it is less than half of the quota, and what is pinned makes it too much.
  bound("a", {});
  put(5, 5);
  Pin pins[] = {lease(3), lease(4)};
  ASSERT_TRUE(pins[0] && pins[1]);
  ASSERT_EQ(kit_.stats().dirty_records.value(), 1U);
  bound("a", {.pool_bytes = 3 * kRecord - 1});
  kit_.loop.run_for(Millis(100));
  EXPECT_EQ(figures("a").pool_bytes, 2 * kRecord);
  EXPECT_EQ(on_flash(5, 5).size(), 1U);
  for (Pin& pin : pins) kit_.store->unpin_lease(std::move(pin));
}

TEST_F(StoreQuotaTest, OpenNamespacesOfATenantAreBounded) {
  open();
  const auto open_one = [this](const std::string& tenant, int n) {
    Namespace ns = kit_.name_space;
    ns.tenant = tenant;
    ns.fingerprint += std::to_string(n);
    return kit_.store->open_namespace(ns);
  };
  bound("a", {.namespaces = 3});
  const auto two = open_one("a", 2), three = open_one("a", 3);
  ASSERT_TRUE(two && three);
  EXPECT_EQ(open_one("a", 4).error().code, Code::kNoSpace);
  EXPECT_TRUE(open_one("a", 3)) << "it is open already";
  EXPECT_TRUE(open_one("b", 4)) << "of another tenant";
  EXPECT_EQ(figures("a").namespaces, 3U);
  EXPECT_EQ(figures("a").namespaces_refused, 1U);
  kit_.store->close_namespace(*two);
  EXPECT_TRUE(open_one("a", 4));
  bound("a", {.namespaces = 1});
  EXPECT_TRUE(open_one("a", 4)) << "those that are open stay";
  EXPECT_EQ(open_one("a", 5).error().code, Code::kNoSpace);
  bound("new", {.namespaces = 0});
  EXPECT_EQ(open_one("new", 1).error().code, Code::kNoSpace);
}

// What other credentials make of all tenants is done a tenant in a turn of the loop.
TEST_F(StoreQuotaTest, SmallerQuotasOfManyTenantsTakeTurns) {
  open_with_flash();
  constexpr int kTenants = 6;
  std::vector<TenantQuota> quotas;
  for (int i = 0; i < kTenants; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    become(name);
    write(1, 3);
    quotas.push_back({name, {.flash_bytes = kRecord}});
  }
  const auto beyond = [&] {
    return std::ranges::count_if(quotas, [&](const auto& q) { return figures(q.tenant).flash_bytes > kRecord; });
  };
  kit_.store->set_quotas(quotas);
  EXPECT_EQ(beyond(), kTenants) << "not inside of the call";
  std::vector<std::ptrdiff_t> seen;
  io::Timer each_turn(kit_.loop, [&] {
    seen.push_back(beyond());
    if (seen.back() > 0 && seen.size() < 100) each_turn.arm(kit_.loop.now());
  });
  each_turn.arm(kit_.loop.now());
  kit_.loop.run_for(Millis(1));
  ASSERT_FALSE(seen.empty());
  EXPECT_GE(seen.front(), kTenants - 1);
  EXPECT_EQ(seen.back(), 0);
  for (std::size_t i = 1; i < seen.size(); ++i) EXPECT_LE(seen[i - 1] - seen[i], 1);
}

TEST_F(StoreQuotaTest, WhatFillsAQuotaAndWaitsToBeWrittenIsWritten) {
  open_with_flash();
  put(1, 1);
  kit_.loop.run_for(std::chrono::minutes(1));
  EXPECT_EQ(kit_.stats().dirty_records.value(), 1U) << "nothing else would have it written";
  bound("a", {.pool_bytes = 4 * kRecord});
  put(2, 4);
  EXPECT_EQ(kit_.put(5).error().code, Code::kBusy) << "all waits to be written";
  EXPECT_EQ(present(1, 4).size(), 4U);
  kit_.loop.run_for(Millis(100));
  EXPECT_EQ(kit_.stats().dirty_records.value(), 0U);
  put(5, 5);
  EXPECT_EQ(present(1, 5).size(), 5U) << "the others are on flash";
  EXPECT_LE(figures("a").pool_bytes, 4 * kRecord);
  kit_.loop.run_for(std::chrono::minutes(1));
  EXPECT_EQ(kit_.stats().dirty_records.value(), 1U) << "the haste has ended";
}

TEST_F(StoreQuotaTest, WhatFillsAQuotaHasNobodyElsesRecordsWritten) {
  open_with_flash();
  become("b");
  put(1, 3);
  kit_.store->set_quotas(std::vector<TenantQuota>{
      {"a", {.pool_bytes = 4 * kRecord}}, {"c", {.pool_bytes = 4 * kRecord}}, {"d", {.pool_bytes = 100 * kRecord}}});
  become("d");
  put(1, 2);
  for (const char* tenant : {"a", "c"}) {
    become(tenant);
    put(1, 3);
  }
  kit_.loop.run_for(Millis(100));
  for (const char* tenant : {"a", "c"}) {
    become(tenant);
    EXPECT_EQ(on_flash(1, 3).size(), 3U) << tenant;
  }
  for (const char* tenant : {"b", "d"}) {
    become(tenant);
    EXPECT_EQ(on_flash(1, 3), Numbers{}) << tenant;
  }
  EXPECT_EQ(kit_.stats().dirty_records.value(), 5U);
  become("a");
  EXPECT_TRUE(kit_.remove(1));  // a tombstone that waits, and a record of the tenant, change nothing about that
  put(4, 4);
  kit_.loop.run_for(Millis(100));
  EXPECT_EQ(kit_.stats().dirty_records.value(), 6U);
  kit_.loop.run_for(std::chrono::hours(10));
  become("b");
  EXPECT_EQ(on_flash(1, 3).size(), 3U) << "they are written when they are due";
  EXPECT_EQ(kit_.stats().dirty_records.value(), 0U);
}

TEST_F(StoreQuotaTest, ARefusedPutHasWhatWaitsWritten) {
  open_with_flash();
  bound("a", {.pool_bytes = 4 * kRecord});
  put(1, 2);
  Pin pins[] = {lease(1), lease(2)};
  put(3, 3);
  kit_.loop.run_for(Millis(100));
  Pin third = lease(3);
  put(4, 4);
  kit_.loop.run_for(Millis(100));
  EXPECT_EQ(kit_.stats().dirty_records.value(), 1U) << "a quarter of the quota may wait";
  EXPECT_EQ(kit_.put(5).error().code, Code::kBusy);
  kit_.loop.run_for(Millis(100));
  EXPECT_EQ(kit_.stats().dirty_records.value(), 0U);
  put(5, 5);
  for (Pin& pin : pins) kit_.store->unpin_lease(std::move(pin));
  kit_.store->unpin_lease(std::move(third));
}

TEST_F(StoreQuotaTest, GetsFromFlashKeepToTheQuotaOfThePool) {
  open_with_flash();
  put(1, 6);
  become("b");
  put(1, 6);
  kit_.close();
  open();
  become("b");
  for (std::uint64_t n = 1; n <= 6; ++n) EXPECT_EQ(kit_.get(n), 1U);
  become("a");
  bound("a", {.pool_bytes = 2 * kRecord});
  for (std::uint64_t n = 1; n <= 6; ++n) EXPECT_EQ(kit_.get(n), 1U);
  EXPECT_LE(figures("a").pool_bytes, 2 * kRecord);
  Pin five = lease(5), six = lease(6);
  ASSERT_TRUE(five && six);
  EXPECT_EQ(kit_.get(1), 0U);
  EXPECT_EQ(kit_.why_missed, Code::kBusy) << "a miss, and no neighbour pays for it";
  kit_.store->unpin_lease(std::move(five));
  kit_.store->unpin_lease(std::move(six));
  become("b");
  for (std::uint64_t n = 1; n <= 6; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kPool);
}

// Of `last` and the records before it, `count` or one less.
bool newest(const std::vector<std::uint64_t>& found, std::uint64_t last, std::size_t count) {
  for (std::size_t i = 0; i < found.size(); ++i)
    if (found[i] != last + 1 - found.size() + i) return false;
  return found.size() == count || found.size() == count - 1;
}

TEST_F(StoreQuotaTest, ATenantAtItsQuotaOfFlashKeepsItsNewest) {
  open_with_flash();
  become("b");
  write(1, 5);
  become("a");
  bound("a", {.flash_bytes = 8 * kRecord});
  for (std::uint64_t n = 1; n <= 20; ++n) {
    write(n, n);
    EXPECT_TRUE(newest(on_flash(1, n), n, std::min<std::uint64_t>(n, 8))) << n;
    EXPECT_EQ(figures("a").flash_bytes, on_flash(1, n).size() * kRecord);
  }
  EXPECT_EQ(figures("a").flash_given_up, 20 * kRecord - figures("a").flash_bytes);
  bound("a", {.flash_bytes = 3 * kRecord});
  EXPECT_TRUE(newest(on_flash(1, 20), 20, 3)) << "a smaller quota counts at once";
  EXPECT_EQ(present(1, 20).size(), 20U) << "the pool has them all the same";
  become("b");
  EXPECT_EQ(on_flash(1, 5).size(), 5U);
  EXPECT_EQ(figures("b").flash_bytes, 5 * kRecord);
}

TEST_F(StoreQuotaTest, AQuotaOfFlashIsKeptAfterARestart) {
  open_with_flash();
  bound("a", {.flash_bytes = 8 * kRecord});
  write(1, 20);
  kit_.kill();
  open();
  EXPECT_EQ(figures("a").flash_bytes, 20 * kRecord) << "all that lies there is counted";
  bound("a", {.flash_bytes = 8 * kRecord});
  EXPECT_TRUE(newest(on_flash(1, 20), 20, 8));
  write(21, 25);
  EXPECT_TRUE(newest(on_flash(1, 25), 25, 8));
}

TEST_F(StoreQuotaTest, AQuotaOfFlashThatIsSetDuringRecoveryCountsAtItsEnd) {
  open_with_flash();
  write(1, 20);
  kit_.kill();
  kit_.options.recover_later = true;
  kit_.meanwhile = [this] { kit_.store->set_quotas(std::vector<TenantQuota>{{"a", {.flash_bytes = 8 * kRecord}}}); };
  open();
  EXPECT_TRUE(newest(on_flash(1, 20), 20, 8));
  EXPECT_LE(figures("a").flash_bytes, 8 * kRecord);
}

TEST_F(StoreQuotaTest, WhatWasGivenUpIsAMissAndMayBePutAgain) {
  open_with_flash();
  bound("a", {.pool_bytes = 2 * kRecord, .flash_bytes = 8 * kRecord});
  write(1, 20);
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
  EXPECT_EQ(kit_.get(1), 0U);
  EXPECT_EQ(kit_.why_missed, Code::kNotFound);
  std::vector<block::RecordId> ids{id_of(1), id_of(20)};
  std::vector<Tier> tiers(2);
  kit_.store->lookup_all(kit_.ns, ids, tiers);
  EXPECT_EQ(tiers, (std::vector<Tier>{Tier::kNone, Tier::kPool}));
  ASSERT_TRUE(kit_.put(1, 2, AckLevel::kWritten));
  write(21, 22);
  EXPECT_EQ(kit_.lookup(1), Tier::kFlash);
  EXPECT_EQ(kit_.get(1), 2U);
}

TEST_F(StoreQuotaTest, WhatWasGivenUpCanBeRemovedForGood) {
  open_with_flash();
  bound("a", {.pool_bytes = 2 * kRecord, .flash_bytes = 8 * kRecord});
  write(1, 20);
  EXPECT_FALSE(kit_.remove(1));
  ASSERT_TRUE(kit_.put(3, 2, AckLevel::kWritten)) << "again";
  EXPECT_TRUE(kit_.remove(3));
  ASSERT_TRUE(kit_.replace(4, 2, AckLevel::kWritten));
  bool removed = false;
  kit_.store->await_removals([&](Status status) { removed = status.has_value(); });
  ASSERT_TRUE(kit_.loop.run_until([&] { return removed; }, std::chrono::seconds(1)));
  kit_.kill();
  open();
  EXPECT_EQ(present(1, 5), (Numbers{2, 4, 5})) << "the others come back";
  EXPECT_EQ(kit_.get(4), 2U);
}

TEST_F(StoreQuotaTest, ARecordLargerThanTheQuotaOfFlashStaysInThePool) {
  open_with_flash();
  write(1, 1);
  bound("a", {.flash_bytes = kRecord - 1});
  EXPECT_EQ(on_flash(1, 1), Numbers{});
  put(2, 2);
  EXPECT_EQ(kit_.stats().dirty_records.value(), 0U);
  EXPECT_EQ(kit_.put(2, 1, AckLevel::kWritten).error().code, Code::kBusy);
  EXPECT_EQ(kit_.put(3, 1, AckLevel::kWritten).error().code, Code::kBusy);
  EXPECT_EQ(kit_.get(3), 1U);
  EXPECT_TRUE(kit_.replace(1, 2));
  kit_.loop.run_for(Millis(100));
  bound("a", {});
  write(2, 2);
  EXPECT_EQ(on_flash(1, 3), Numbers{2});
  kit_.settle();
  kit_.kill();
  open();
  EXPECT_EQ(present(1, 3), Numbers{2}) << "what was replaced does not come back";
}

TEST_F(StoreQuotaTest, WhatARecordBeyondTheQuotaReplacesStaysAway) {
  open_with_flash();
  kit_.kill();
  kit_.options.demote_idle = Millis(10);
  open();
  write(1, 1);
  bound("a", {.flash_bytes = kRecord - 1});
  kit_.loop.run_for(std::chrono::seconds(1));
  ASSERT_TRUE(kit_.replace(1, 2));
  kit_.loop.run_for(std::chrono::seconds(1));  // with nothing else to write
  EXPECT_EQ(kit_.stats().tombstones.value(), 1U);
  kit_.kill();
  open();
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
}

TEST_F(StoreQuotaTest, WhatWasGivenUpIsWrittenAgainForWhoWaitsForThat) {
  open_with_flash();
  write(1, 1);
  bound("a", {.flash_bytes = 8 * kRecord});
  write(2, 20);
  ASSERT_EQ(on_flash(1, 1), Numbers{});
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kWritten));
  EXPECT_EQ(on_flash(1, 1), Numbers{1});
}

TEST_F(StoreQuotaTest, WhoWaitsForARecordThatMayNotBeWrittenAnyMoreIsTold) {
  open_with_flash();
  std::optional<Code> replaced, waiting;
  kit_.start_put(1, replaced);
  kit_.start_put(2, waiting);
  kit_.store->set_quotas(std::vector<TenantQuota>{{"a", {.flash_bytes = 1}}});
  EXPECT_TRUE(kit_.replace(1, 2));
  kit_.loop.run_for(Millis(100));
  EXPECT_EQ(replaced, Code::kBusy);
  EXPECT_EQ(waiting, Code::kBusy);
  EXPECT_EQ(on_flash(1, 2), Numbers{});
  EXPECT_EQ(present(1, 2).size(), 2U);
}

// Or a tenant that writes much would have its neighbours' segments given up, as the oldest.
TEST_F(StoreQuotaTest, SegmentsOfWhatWasGivenUpGoBeforeANeighbours) {
  open_with_flash();
  become("b");
  write(1, 5);
  become("a");
  bound("a", {.flash_bytes = 8 * kRecord});
  write(1, 200);
  EXPECT_GT(kit_.stats().segments_evicted.value(), 20U);
  EXPECT_TRUE(newest(on_flash(1, 200), 200, 8));
  become("b");
  EXPECT_EQ(on_flash(1, 5).size(), 5U);
}

TEST_F(StoreQuotaTest, ATenantOfNothingIsForgotten) {
  open();
  const auto count = [this] { return kit_.store->tenant_figures(100).size(); };
  EXPECT_EQ(count(), 2U) << "a, and the kit's own";
  for (int n = 0; n < 50; ++n) {
    Namespace ns = kit_.name_space;
    ns.tenant = "t" + std::to_string(n);
    const NamespaceHandle handle = *kit_.store->open_namespace(ns);
    EXPECT_EQ(count(), 3U);
    kit_.store->close_namespace(handle);
  }
  EXPECT_EQ(count(), 2U);
  bound("q", {.pool_bytes = 1});
  EXPECT_EQ(count(), 3U);
  bound("a", {.pool_bytes = kRecord});
  EXPECT_EQ(count(), 2U);
  const auto summed = kit_.store->tenant_figures(1);
  ASSERT_EQ(summed.size(), 2U);
  EXPECT_EQ(summed[1].tenant, "(others)");
  EXPECT_EQ(kit_.store->tenant_figures(0).size(), 1U);
}

// Random operations of three tenants, whose quotas change, on a store that is restarted, killed and cut off from power;
// after each the counters are compared with what is there.
class StoreQuotaModel : public StoreQuotaTest, public ::testing::WithParamInterface<std::uint64_t> {
 protected:
  static constexpr std::uint64_t kRecords = 30;

  void open_all() {
    ASSERT_TRUE(kit_.open()) << kit_.why;
    handles_.clear();
    set_quotas();
  }
  void set_quotas() {
    std::vector<TenantQuota> quotas;
    for (const auto& [tenant, quota] : quotas_) quotas.push_back({tenant, quota});
    kit_.store->set_quotas(quotas);
    kit_.loop.settle();
  }
  void change_quota(const std::string& tenant) {
    SpaceQuota& quota = quotas_[tenant] = {};
    if (random_.chance(3, 4)) quota.pool_bytes = random_.below(12 * kRecord);
    if (random_.chance(3, 4)) quota.flash_bytes = random_.below(20 * kRecord);
    set_quotas();
  }
  void end() {
    leases_.clear();
    handles_.clear();
    const std::uint64_t seed = random_.next();
    switch (random_.below(3)) {
      case 0: kit_.close(); break;
      case 1: kit_.kill(seed); break;
      default: kit_.lose_power(seed, 50); break;
    }
  }
  void put(const std::string& tenant, std::uint64_t n) {
    const auto level = static_cast<AckLevel>(random_.below(3));
    const bool replaces = n < kRecords / 3;
    const bool there = kit_.lookup(n) != Tier::kNone && !replaces;
    const Status status = replaces ? kit_.replace(n, 1 + random_.below(8), level) : kit_.put(n, 1, level);
    if (!status || level != AckLevel::kPooled || there) return;
    EXPECT_LE(figures(tenant).pool_bytes, quota_of(tenant));
  }
  [[nodiscard]] std::uint64_t quota_of(const std::string& tenant) { return quotas_[tenant].pool_bytes; }
  void toggle_lease(std::uint64_t n) {
    if (!leases_.empty() && random_.chance(1, 2)) {
      kit_.store->unpin_lease(std::move(leases_.back()));
      leases_.pop_back();
    } else if (Pin pin = lease(n)) {
      leases_.push_back(std::move(pin));
    }
  }
  void step() {
    const std::string tenant(1, static_cast<char>('a' + random_.below(3)));
    const std::uint64_t n = 1 + random_.below(kRecords);
    become(tenant);
    kit_.passing = random_.chance(1, 4);
    switch (random_.below(20)) {
      case 0: return change_quota(tenant);
      case 1: return kit_.loop.run_for(Millis(static_cast<std::int64_t>(random_.below(100))));
      case 2: return kit_.store->promote(kit_.ns, id_of(n));
      case 3: return toggle_lease(n);
      case 4: return static_cast<void>(kit_.flip_in_pool(n, 0) && kit_.store->check(kit_.ns, id_of(n)));
      case 5:
      case 6: return static_cast<void>(kit_.remove(n));
      case 7:
      case 8:
      case 9:
      case 10:
      case 11: return static_cast<void>(kit_.get(n));
      case 12:
        if (!random_.chance(1, 8)) return;
        end();
        return open_all();
      default: return put(tenant, n);
    }
  }
  void expect_right() {
    std::uint64_t all = 0;
    for (const auto& [tenant, ns] : handles_) {
      EXPECT_EQ(figures(tenant).pool_bytes, impl().recount_pool(ns)) << tenant;
      std::uint64_t flash_bytes = 0;
      for (std::uint64_t n = 1; n <= kRecords; ++n) flash_bytes += impl().flash_bytes_of(ns, id_of(n));
      EXPECT_EQ(figures(tenant).flash_bytes, flash_bytes) << tenant;
      EXPECT_LE(flash_bytes, quotas_[tenant].flash_bytes) << tenant;
    }
    for (const TenantFigures& tenant : kit_.store->tenant_figures(100)) all += tenant.pool_bytes;
    EXPECT_EQ(all, kit_.stats().pool_bytes_used.value());
  }

  Random random_{GetParam()};
  std::map<std::string, SpaceQuota> quotas_;
  std::vector<Pin> leases_;
};

TEST_P(StoreQuotaModel, CountersAreWhatIsThere) {
  kit_.options.flash_bytes = (4 << 20) + 6 * kit_.options.segment_bytes;
  kit_.options.demote_idle = Millis(5);
  kit_.options.demote_after = Millis(50);
  open_all();
  for (int i = 0; i < 500 && !HasFailure(); ++i) {
    step();
    expect_right();
  }
  leases_.clear();
}

INSTANTIATE_TEST_SUITE_P(Seeds, StoreQuotaModel, ::testing::Range<std::uint64_t>(1, 21));

}  // namespace
}  // namespace kvd::store
