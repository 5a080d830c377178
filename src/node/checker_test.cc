#include "node/checker.h"

#include <gtest/gtest.h>

#include "store/testing/store_kit.h"

namespace kvd::node {
namespace {

TEST(Checker, LooksAtTheFirstReportsAtOnceAndAtTheRestInTurn) {
  store::StoreKit kit;
  kit.options.flash_bytes = 0;
  ASSERT_TRUE(kit.open()) << kit.why;
  for (std::uint64_t n = 0; n < 4; ++n) {
    ASSERT_TRUE(kit.put(n));
    ASSERT_TRUE(n == 2 || kit.flip_in_pool(n, 1));
  }
  const auto ns = std::make_shared<const NamespaceUse>(*kit.store, *kit.store->open_namespace(kit.name_space));
  Checker checker(kit.loop, *kit.store);
  Checker::AtOnce at_once;
  const auto report = [&](std::uint64_t n, std::uint64_t bytes) {
    checker.report(ns, store::id_of(n), bytes, at_once);
  };
  report(0, Checker::kAtOnceBytes - 1);
  report(1, 2);
  report(2, 1);
  report(3, 1);
  EXPECT_EQ(kit.lookup(0), Tier::kNone);
  EXPECT_EQ(kit.lookup(1), Tier::kPool) << "the message's share is used up";
  kit.loop.run_for(Millis(1));
  EXPECT_EQ(kit.lookup(1), Tier::kNone);
  EXPECT_EQ(kit.lookup(2), Tier::kPool) << "it is sound";
  EXPECT_EQ(kit.lookup(3), Tier::kNone);
}

TEST(Checker, ForgetsWhatIsTooMuch) {
  store::StoreKit kit;
  kit.options.flash_bytes = 0;
  ASSERT_TRUE(kit.open()) << kit.why;
  ASSERT_TRUE(kit.put(1));
  ASSERT_TRUE(kit.flip_in_pool(1, 0));
  const auto ns = std::make_shared<const NamespaceUse>(*kit.store, *kit.store->open_namespace(kit.name_space));
  Checker checker(kit.loop, *kit.store);
  Checker::AtOnce none{.bytes = 0};
  for (std::size_t i = 0; i < Checker::kQueuedMax; ++i) checker.report(ns, store::id_of(99), 1, none);
  checker.report(ns, store::id_of(1), 1, none);
  kit.loop.run_for(Millis(10));
  EXPECT_EQ(kit.lookup(1), Tier::kPool);
  checker.report(ns, store::id_of(1), 1, none);
  kit.loop.run_for(Millis(1));
  EXPECT_EQ(kit.lookup(1), Tier::kNone) << "reported again";
}

}  // namespace
}  // namespace kvd::node
