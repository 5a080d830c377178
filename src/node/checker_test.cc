#include "node/checker.h"

#include <gtest/gtest.h>

#include "store/testing/store_kit.h"

namespace kvd::node {
namespace {

class CheckerTest : public testing::Test {
 protected:
  void SetUp() override {
    kit_.options.flash_bytes = 0;
    ASSERT_TRUE(kit_.open()) << kit_.why;
    ns_ = std::make_shared<const NamespaceUse>(*kit_.store, *kit_.store->open_namespace(kit_.name_space));
  }
  void TearDown() override { ns_.reset(); }
  // Puts these and turns a bit of each over.
  std::vector<block::RecordId> damaged(std::uint64_t first, std::uint64_t count) {
    std::vector<block::RecordId> ids;
    for (std::uint64_t n = first; n < first + count; ++n) {
      EXPECT_TRUE(kit_.put(n) && kit_.flip_in_pool(n, 1));
      ids.push_back(store::id_of(n));
    }
    return ids;
  }
  [[nodiscard]] bool dropped(std::uint64_t n) { return kit_.lookup(n) == Tier::kNone; }
  void turn() { kit_.loop.run_once(Duration::zero()); }

  store::StoreKit kit_;
  TurnAllowance at_once_{kit_.loop, 100};
  net::SliceLine line_{kit_.loop};
  SharedNamespace ns_;
};

TEST_F(CheckerTest, VerifiesAtOnceWhatATurnHasTimeFor) {
  Checker checker(line_, at_once_, *kit_.store), other(line_, at_once_, *kit_.store);
  ASSERT_TRUE(kit_.put(9));
  auto ids = damaged(0, 3);
  ids.insert(ids.begin() + 1, store::id_of(9));
  EXPECT_EQ(checker.verify(*ns_, ids, 40), 2U);
  EXPECT_TRUE(dropped(0) && !dropped(1));
  EXPECT_EQ(kit_.lookup(9), Tier::kPool) << "it is sound";
  EXPECT_EQ(other.verify(*ns_, std::span(ids).last(2), 40), 0U) << "of all together";
  turn();
  EXPECT_EQ(other.verify(*ns_, std::span(ids).last(2), 40), 2U);
  EXPECT_TRUE(dropped(1) && dropped(2));
}

TEST_F(CheckerTest, WhoHasMoreStandsInLineWithASliceATurn) {
  const int a = 0, b = 0;
  Checker one(line_, at_once_, *kit_.store), more(line_, at_once_, *kit_.store), other(line_, at_once_, *kit_.store);
  one.set_share(&a);
  more.set_share(&a);
  other.set_share(&b);
  one.enter(ns_, damaged(0, 4), Checker::kSliceBytes, {});
  more.enter(ns_, damaged(10, 4), Checker::kSliceBytes, {});
  other.enter(ns_, damaged(20, 6), Checker::kSliceBytes / 2, {});
  for (int i = 0; i < 6; ++i) turn();
  EXPECT_TRUE(dropped(20) && dropped(23) && dropped(25)) << "shares have turns, not connections";
  EXPECT_EQ(more.verify(*ns_, damaged(30, 1), 1), 0U) << "behind those that wait";
  EXPECT_TRUE(dropped(0) && !dropped(2) && dropped(10) && !dropped(12));
  more.clear();
  for (int i = 0; i < 6; ++i) turn();
  EXPECT_TRUE(dropped(2) && dropped(3));
  EXPECT_FALSE(dropped(12)) << "its reports were forgotten";
}

TEST_F(CheckerTest, ReportsThatWaitCountUntilTheyAreThrough) {
  Budget node(8);
  ConnectionBudget connection(8, node);
  Checker checker(line_, at_once_, *kit_.store);
  checker.enter(ns_, damaged(0, 2), Checker::kSliceBytes, connection.take_of_all(2));
  turn();
  EXPECT_EQ(node.used(), 2U);
  turn();
  EXPECT_EQ(node.used(), 0U);
  checker.enter(ns_, damaged(2, 2), Checker::kSliceBytes, connection.take_of_all(2));
  checker.clear();
  EXPECT_EQ(node.used(), 0U);
}

}  // namespace
}  // namespace kvd::node
