// Which namespaces a store knows, and when it forgets one.
#include "store/namespaces.h"

#include <string>

#include <gtest/gtest.h>

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

TEST(Namespaces, OneThatFlashHoldsOtherwiseCountsWhenNobodyHasItOpen) {
  Namespaces namespaces(1 << 20);
  const Namespace stored = named(1), other = namespace_of(5, 5'000, "model 1");
  const NamespaceName name{stored.tenant, stored.fingerprint};
  const NamespaceHandle early = *namespaces.open(other);
  const NamespaceHandle same = namespaces.learn(name, other.groups[0]);
  EXPECT_EQ(same, early);
  EXPECT_FALSE(namespaces.disputed());
  const NamespaceHandle found = namespaces.learn(name, stored.groups[0]);
  namespaces.hold(found);
  EXPECT_NE(found, early);
  EXPECT_TRUE(namespaces.disputed());
  EXPECT_EQ(namespaces.learn(name, stored.groups[0]), found);
  EXPECT_EQ(namespaces.at(found).hash, namespaces.at(early).hash) << "they are one namespace";
  EXPECT_EQ(namespaces.at(found).group(0)->schema, stored.groups[0]) << "its removals stay writable";
  EXPECT_EQ(namespaces.at(early).group(0)->schema, other.groups[0]);
  EXPECT_EQ(*namespaces.open(other), early) << "while it is open";
  namespaces.close(early);
  namespaces.close(early);
  EXPECT_FALSE(namespaces.known(early));
  EXPECT_EQ(namespaces.open(other).error().code, Code::kInvalid);
  EXPECT_EQ(*namespaces.open(stored), found);
  namespaces.close(found);
  namespaces.release(found);
  EXPECT_TRUE(namespaces.open(other)) << "nothing is left of what flash held";
}

TEST(Namespaces, OneThatFlashHoldsOtherwiseMayGoFirst) {
  Namespaces namespaces(1 << 20);
  const NamespaceHandle early = *namespaces.open(namespace_of(5, 5'000, "model 1"));
  const NamespaceHandle found = namespaces.learn({named(1).tenant, named(1).fingerprint}, named(1).groups[0]);
  namespaces.hold(found);
  namespaces.release(found);
  EXPECT_FALSE(namespaces.known(found));
  namespaces.close(early);
  EXPECT_TRUE(namespaces.open(named(1)));
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
