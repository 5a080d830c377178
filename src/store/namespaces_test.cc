// Which namespaces a store knows, and when it forgets one.
#include "store/namespaces.h"

#include <string>

#include <gtest/gtest.h>

#include "store/held_namespaces.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

Namespace named(std::uint64_t n) { return namespace_of(4, 5'000, "model " + std::to_string(n)); }

TEST(Namespaces, OneThatNobodyHoldsIsForgottenWhenItIsClosed) {
  Namespaces namespaces(1 << 20);
  const NamespaceHandle a = *namespaces.open(named(1));
  EXPECT_EQ(*namespaces.open(named(1)), a);
  namespaces.close(a);
  EXPECT_TRUE(namespaces.opened(a));
  namespaces.close(a);
  EXPECT_FALSE(namespaces.known(a));
  EXPECT_EQ(*namespaces.open(named(2)), a) << "its handle is free";
}

TEST(HeldNamespaces, EachIsThereOnceHoweverManyThereAre) {
  HeldNamespaces held;
  for (int use = 0; use < 2; ++use) {
    for (NamespaceHandle ns = 0; ns < 3 * HeldNamespaces::kSearchedMax; ++ns) {
      EXPECT_TRUE(held.add(ns));
      for (NamespaceHandle earlier = 0; earlier <= ns; ++earlier) EXPECT_FALSE(held.add(earlier));
      EXPECT_EQ(held.all().size(), ns + 1);
    }
    held.clear();
    EXPECT_TRUE(held.all().empty());
  }
}

TEST(Namespaces, OneThatIsHeldKeepsHandleAndSchema) {
  Namespaces namespaces(1 << 20);
  const NamespaceHandle a = *namespaces.open(named(1));
  const GroupInfo* const group = namespaces.at(a).group(0);
  namespaces.hold(a);
  namespaces.close(a);
  EXPECT_TRUE(namespaces.known(a));
  EXPECT_FALSE(namespaces.opened(a));
  EXPECT_NE(*namespaces.open(named(2)), a);
  EXPECT_EQ(namespaces.open(namespace_of(5, 5'000, "model 1")).error().code, Code::kInvalid);
  EXPECT_EQ(*namespaces.open(named(1)), a);
  EXPECT_EQ(namespaces.at(a).group(0), group) << "records point to it";
  namespaces.release(a);
  EXPECT_TRUE(namespaces.opened(a));
  namespaces.close(a);
  EXPECT_FALSE(namespaces.known(a));
  EXPECT_TRUE(namespaces.open(namespace_of(5, 5'000, "model 1"))) << "nothing is left of the old schema";
}

Namespace two_groups(std::uint64_t n) {
  Namespace ns = named(n);
  ns.groups.push_back(ns.groups[0]);
  ns.groups[1].group = 1;
  return ns;
}

NamespaceName name_of(const Namespace& ns) { return {ns.tenant, ns.fingerprint}; }

TEST(Namespaces, WhileFlashIsReadOneIsOpenedWhenAllItsGroupsWereTold) {
  Namespaces namespaces(1 << 20);
  namespaces.set_reading(true);
  const Namespace both = two_groups(1);
  EXPECT_EQ(namespaces.open(both).error().code, Code::kUnavailable);
  const NamespaceHandle found = namespaces.learn(name_of(both), both.groups[1]).handle;
  namespaces.hold(found);
  EXPECT_EQ(namespaces.open(both).error().code, Code::kUnavailable) << "the other group may be stored otherwise";
  EXPECT_EQ(namespaces.learn(name_of(both), both.groups[0]).handle, found);
  EXPECT_EQ(*namespaces.open(both), found);
  EXPECT_EQ(*namespaces.open(both), found) << "the second connection of the same client";
  EXPECT_EQ(namespaces.open(named(2)).error().code, Code::kUnavailable) << "it may be stored";
  EXPECT_TRUE(namespaces.open(named(3), true)) << "stored or not, nobody else can name it";
  namespaces.set_reading(false);
  EXPECT_TRUE(namespaces.open(named(2)));
}

TEST(Namespaces, OfTwoSchemasOnFlashTheOneThatIsToldFirstCounts) {
  Namespaces namespaces(1 << 20);
  namespaces.set_reading(true);
  const Namespace stored = named(1), other = namespace_of(5, 5'000, "model 1");
  EXPECT_TRUE(namespaces.learn(name_of(stored), stored.groups[0]).agrees);
  const NamespaceHandle found = *namespaces.open(stored);
  const Namespaces::Told late = namespaces.learn(name_of(other), other.groups[0]);
  EXPECT_EQ(late.handle, found) << "they are one namespace, whose removals stay writable";
  EXPECT_FALSE(late.agrees);
  EXPECT_TRUE(namespaces.learn(name_of(stored), stored.groups[0]).agrees);
  EXPECT_EQ(namespaces.at(found).group(0)->schema, stored.groups[0]);
  EXPECT_EQ(namespaces.open(other).error().code, Code::kInvalid) << "at once: it will not be told otherwise";
}

// What flash holds is known in the end as if nobody had opened anything before.
TEST(Namespaces, AGroupThatIsToldLaterJoinsWhatIsOpen) {
  Namespaces namespaces(1 << 20);
  namespaces.set_reading(true);
  const Namespace both = two_groups(1);
  namespaces.learn(name_of(both), both.groups[0]);
  const NamespaceHandle early = *namespaces.open(named(1));
  EXPECT_EQ(namespaces.open(both).error().code, Code::kUnavailable) << "not refused: it may be the rightful one";
  EXPECT_TRUE(namespaces.learn(name_of(both), both.groups[1]).agrees);
  EXPECT_EQ(*namespaces.open(both), early);
  EXPECT_NE(namespaces.at(early).group(1), nullptr);
  EXPECT_EQ(namespaces.open(named(1)).error().code, Code::kInvalid) << "as after a recovery that nobody watched";
}

TEST(Namespaces, AsManyAsOneLikesOneAfterAnother) {
  Namespaces namespaces(1 << 20);
  for (std::uint64_t n = 0; n < Namespaces::kOpenedMax; ++n) ASSERT_TRUE(namespaces.open(named(n)));
  EXPECT_EQ(namespaces.open(named(1'000'000)).error().code, Code::kNoSpace);
  EXPECT_TRUE(namespaces.open(named(7))) << "it is open already";
  namespaces.close(9);
  for (std::uint64_t n = 0; n < 1'000; ++n) {
    const auto next = namespaces.open(named(2'000'000 + n));
    ASSERT_TRUE(next);
    namespaces.close(*next);
  }
}

class StoreNamespacesTest : public ::testing::Test {
 protected:
  // Opens a namespace on the store, makes it the kit's and returns what was.
  NamespaceHandle change_to(std::uint64_t n) {
    const auto handle = kit_.store->open_namespace(named(n));
    EXPECT_TRUE(handle);
    return std::exchange(kit_.ns, *handle);
  }
  StoreKit kit_;
};

TEST_F(StoreNamespacesTest, RecordsInThePoolKeepTheirNamespace) {
  kit_.options.flash_bytes = 0;
  ASSERT_TRUE(kit_.open()) << kit_.why;
  ASSERT_TRUE(kit_.put(1));
  const NamespaceHandle old = change_to(1);
  kit_.store->close_namespace(old);
  ASSERT_TRUE(kit_.put(1, 2));
  EXPECT_EQ(kit_.get(1), 2u);
  EXPECT_EQ(*kit_.store->open_namespace(kit_.name_space), old);
  kit_.ns = old;
  EXPECT_EQ(kit_.get(1), 1u) << "nothing was lost";
  kit_.store->close_namespace(old);
  // Others push its last record out of the pool.
  change_to(1);
  for (std::uint64_t n = 100; n < 140; ++n) ASSERT_TRUE(kit_.put(n));
  EXPECT_EQ(*kit_.store->open_namespace(named(2)), old);
}

TEST_F(StoreNamespacesTest, RecordsOnFlashKeepTheirNamespaceUntilTheirSegmentGoes) {
  ASSERT_TRUE(kit_.open()) << kit_.why;
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kWritten));
  ASSERT_TRUE(kit_.reopen());
  const NamespaceHandle old = change_to(1);
  kit_.store->close_namespace(old);
  EXPECT_NE(*kit_.store->open_namespace(named(2)), old);
  for (std::uint64_t n = 100; kit_.stats().segments_evicted.value() < 3; ++n)
    ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  kit_.loop.run_for(Millis(50));
  EXPECT_EQ(*kit_.store->open_namespace(named(3)), old);
}

// A segment may hold thousands, each once: what removals and successors name in it, too, and what a start finds.
TEST_F(StoreNamespacesTest, ManyThatOneSegmentHoldsGoWithIt) {
  constexpr std::uint64_t kMany = 1'500;
  kit_.name_space = namespace_of(1, 4'000, "others");
  kit_.options.pool_bytes = 16 << 20;
  kit_.options.segment_bytes = 16 << 20;
  kit_.options.flash_bytes = kHeadBytes + 4 * kit_.options.segment_bytes;
  ASSERT_TRUE(kit_.open()) << kit_.why;
  const auto small = [](std::uint64_t n) { return namespace_of(1, 4'000, "model " + std::to_string(n)); };
  const auto change = [&](std::uint64_t n) {
    const auto handle = kit_.store->open_namespace(small(n));
    EXPECT_TRUE(handle);
    kit_.store->close_namespace(std::exchange(kit_.ns, *handle));
  };
  for (std::uint64_t n = 0; n < kMany; ++n) {
    change(n);
    ASSERT_TRUE(kit_.put(n));
  }
  kit_.settle();
  for (std::uint64_t n = 0; n < kMany; n += 2) {
    change(n);
    EXPECT_EQ(kit_.lookup(n), Tier::kPool);
    EXPECT_TRUE(n % 4 == 0 ? kit_.remove(n) : kit_.replace(n, 2).has_value());
  }
  for (const bool again : {false, true}) {
    const Status opened = again ? kit_.reopen() : Status{};
    ASSERT_TRUE(opened) << kit_.why;
    change(kMany);
    kit_.settle();
    EXPECT_GE(*kit_.store->open_namespace(named(kMany + 1 + (again ? 1 : 0))), kMany) << "all are held";
  }
  for (std::uint64_t n = 10'000; kit_.stats().segments_evicted.value() < 3; ++n) {
    const Status put = kit_.put(n);
    if (!put) kit_.loop.run_for(Millis(20));
  }
  kit_.loop.run_for(Millis(50));
  std::uint64_t reused = 0;
  for (std::uint64_t n = 0; n < kMany; ++n) reused += *kit_.store->open_namespace(small(100'000 + n)) < kMany ? 1 : 0;
  EXPECT_GT(reused, kMany - 10);
}

// The tombstone is still to be written when nobody has the namespace open any more.
TEST_F(StoreNamespacesTest, ARemovalIsWrittenUnderItsOwnNamespaceAlsoWhenThatIsClosed) {
  ASSERT_TRUE(kit_.open()) << kit_.why;
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kSynced));
  EXPECT_TRUE(kit_.remove(1));
  kit_.store->close_namespace(kit_.ns);
  for (std::uint64_t n = 1; n < 4; ++n) change_to(n);
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kSynced));
  kit_.loop.run_for(Millis(200));
  EXPECT_EQ(kit_.stats().tombstones.value(), 1u);
  kit_.kill();
  ASSERT_TRUE(kit_.open()) << kit_.why;
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
  change_to(3);
  EXPECT_EQ(kit_.lookup(1), Tier::kFlash);
}

}  // namespace
}  // namespace kvd::store
