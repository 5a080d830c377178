// The write budget: how much is written, what becomes of the rest, and what is written all the same.
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr double kBudgetUnit = 36 << 10;  // a record

class BudgetTest : public ::testing::Test {
 protected:
  // `records` may be written a day; a 144th of it is there at the beginning.
  void open(double records) {
    kit_.options.drive_writes_per_day = records * kBudgetUnit / 0.8 / static_cast<double>(kit_.options.flash_bytes);
    ASSERT_TRUE(kit_.open()) << kit_.why;
  }
  // A store that has record 0 on flash and may write the next one in ten minutes.
  void open_spent() {
    open(144);
    ASSERT_TRUE(kit_.put(0));
    become_due();
    ASSERT_EQ(written(), 1U);
  }
  void become_due() { kit_.loop.run_for(kit_.options.demote_after + seconds(1)); }
  [[nodiscard]] std::uint64_t written() const { return kit_.stats().flash_records.value(); }
  [[nodiscard]] std::uint64_t dropped() const { return kit_.stats().writes_dropped.value(); }

  StoreKit kit_;
};

TEST_F(BudgetTest, WhatIsBeyondItStaysInMemoryUntilThereIsMore) {
  open_spent();
  for (std::uint64_t n = 1; n <= 5; ++n) ASSERT_TRUE(kit_.put(n));
  kit_.loop.run_for(seconds(1));  // idle, but not due: it may still be written
  EXPECT_EQ(kit_.stats().dirty_records.value(), 5U);
  become_due();
  EXPECT_EQ(written(), 1U);
  EXPECT_EQ(dropped(), 5U);
  EXPECT_EQ(kit_.stats().dirty_records.value(), 0U);
  for (std::uint64_t n = 0; n <= 5; ++n) EXPECT_EQ(kit_.get(n), 1U);
  kit_.loop.run_for(minutes(15));
  ASSERT_TRUE(kit_.put(6));
  become_due();
  EXPECT_EQ(written(), 2U);
  EXPECT_EQ(dropped(), 5U);
  kit_.kill();
  ASSERT_TRUE(kit_.open()) << kit_.why;
  for (std::uint64_t n = 0; n <= 6; ++n) EXPECT_EQ(kit_.get(n), n == 0 || n == 6 ? 1U : 0U) << n;
}

TEST_F(BudgetTest, PutsThatWaitForFlashEndAsBusyAtOnce) {
  open_spent();
  const Time before = kit_.loop.now();
  const Status put = kit_.put(1, 1, AckLevel::kWritten);
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kBusy);
  EXPECT_EQ(kit_.loop.now(), before);
  EXPECT_EQ(kit_.get(1), 1U);
}

TEST_F(BudgetTest, RemovalsAreWrittenAllTheSame) {
  open_spent();
  ASSERT_TRUE(kit_.remove(0));
  std::optional<bool> removed;
  kit_.store->await_removals([&removed](Status status) { removed = status.has_value(); });
  kit_.loop.run_for(seconds(1));
  EXPECT_EQ(removed, true);
  kit_.kill();
  ASSERT_TRUE(kit_.open()) << kit_.why;
  EXPECT_EQ(kit_.get(0), 0U);
}

// Records that may not be written give way to new ones like any others.
TEST_F(BudgetTest, ThePoolDoesNotFillWithWhatMayNotBeWritten) {
  open_spent();
  for (std::uint64_t n = 100; n < 200; ++n) {
    ASSERT_TRUE(kit_.put(n)) << n;
    kit_.loop.run_for(Millis(1));
    EXPECT_LE(kit_.stats().dirty_bytes.value(), kit_.options.pool_bytes / 2);
  }
  EXPECT_EQ(written(), 1U);
  EXPECT_EQ(kit_.stats().puts_refused.value(), 0U);
  EXPECT_EQ(kit_.get(199), 1U);
}

// The same of what a tenant may have of it, whose records go alone.
TEST_F(BudgetTest, AQuotaDoesNotFillWithWhatMayNotBeWritten) {
  open_spent();
  ASSERT_TRUE(kit_.put(1));
  Namespace bounded = kit_.name_space;
  bounded.tenant = "bounded";
  kit_.ns = *kit_.store->open_namespace(bounded);
  const std::uint64_t quota = kit_.stats().dirty_bytes.value() * 4;
  kit_.store->set_quotas(std::vector<TenantQuota>{{bounded.tenant, {.pool_bytes = quota}}});
  for (std::uint64_t n = 1; n < 20; ++n) {
    ASSERT_TRUE(kit_.put(n)) << n;
    kit_.loop.run_for(Millis(1));
  }
  EXPECT_EQ(written(), 1U);
  EXPECT_EQ(kit_.stats().puts_refused.value(), 0U);
  EXPECT_EQ(kit_.get(19), 1U);
  EXPECT_EQ(kit_.stats().dirty_records.value(), 2U) << "the other's waits until it is due, and one of its own may";
}

TEST_F(BudgetTest, DrainingDropsTheRestAndEnds) {
  open_spent();
  for (std::uint64_t n = 1; n <= 3; ++n) ASSERT_TRUE(kit_.put(n));
  bool drained = false;
  kit_.store->drain(kNever, [&drained] { drained = true; });
  kit_.loop.run_for(seconds(1));
  EXPECT_TRUE(drained);
  EXPECT_EQ(written(), 1U);
  EXPECT_EQ(dropped(), 3U);
  EXPECT_EQ(kit_.log.count("3 records were beyond the write budget"), 1U);
}

// A frame's segment comes from those that are ready, and the header of the next one takes the last of the budget: the
// record stays dirty until it is due, and is not taken for one that does not fit into a segment.
TEST_F(BudgetTest, ASegmentThatSpendsTheLastOfItCostsNoRecord) {
  open(144 * (2.5 * kPageBytes) / kBudgetUnit);  // the headers of two ready segments, and half of another
  const std::uint64_t headers = kit_.stats().flash_bytes_written.value();
  ASSERT_EQ(headers, 2 * kPageBytes);
  ASSERT_TRUE(kit_.put(1));
  kit_.loop.run_for(seconds(1));
  EXPECT_EQ(kit_.stats().flash_bytes_written.value(), 3 * kPageBytes);  // the budget is spent
  EXPECT_EQ(kit_.stats().dirty_records.value(), 1U);
  become_due();
  EXPECT_EQ(kit_.stats().dirty_records.value(), 0U);
  EXPECT_EQ(dropped(), 1U);
}

// A copy on flash that a failed flush has made doubtful is better than none.
TEST_F(BudgetTest, WhatCannotBeWrittenAnewKeepsItsCopy) {
  open(288);
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kWritten));
  kit_.drive().inject(io::DiskOp::Kind::kSync, 1, io::SimFault::kError);
  const auto await = [this](AckLevel level) {
    std::optional<Code> code;
    kit_.store->await(kit_.ns, id_of(1), level,
                      [&code](Status status) { code = status ? Code::kOk : status.error().code; });
    kit_.loop.run_for(seconds(1));
    return code;
  };
  EXPECT_EQ(await(AckLevel::kSynced), Code::kIo);
  for (std::uint64_t n = 2; n <= 4; ++n) (void)kit_.put(n, 1, AckLevel::kWritten);  // spends the rest
  EXPECT_EQ(await(AckLevel::kSynced), Code::kBusy);
  EXPECT_EQ(kit_.stats().tombstones.value(), 0U);
  kit_.kill();
  ASSERT_TRUE(kit_.open()) << kit_.why;
  EXPECT_EQ(kit_.get(1), 1U);
}

// The same where there is some budget left, but not for all of them.
TEST_F(BudgetTest, OnlyAsManyAsCanBeWrittenAnewGiveUpTheirCopies) {
  constexpr std::uint64_t kRecords = 16;
  open(144 * 1.8 * kRecords);  // at the beginning there is enough for all, and then for most, a second time
  for (std::uint64_t n = 0; n < kRecords; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  kit_.drive().inject(io::DiskOp::Kind::kSync, 1, io::SimFault::kError);
  std::vector<Code> codes;
  const auto await_all = [&] {
    codes.clear();
    for (std::uint64_t n = 0; n < kRecords; ++n)
      kit_.store->await(kit_.ns, id_of(n), AckLevel::kSynced,
                        [&codes](Status status) { codes.push_back(status ? Code::kOk : status.error().code); });
    kit_.loop.run_for(seconds(1));
  };
  await_all();
  EXPECT_EQ(codes, std::vector<Code>(kRecords, Code::kIo));
  await_all();
  ASSERT_EQ(codes.size(), kRecords);
  const auto anew = static_cast<std::uint64_t>(std::ranges::count(codes, Code::kOk));
  EXPECT_GT(anew, 0U);
  EXPECT_EQ(static_cast<std::uint64_t>(std::ranges::count(codes, Code::kBusy)), kRecords - anew);
  kit_.kill();
  ASSERT_TRUE(kit_.open()) << kit_.why;
  for (std::uint64_t n = 0; n < kRecords; ++n) EXPECT_EQ(kit_.get(n), 1U) << n;
}

// Twelve hours of twice as many puts as may be written.
TEST_F(BudgetTest, NoMoreIsWrittenThanItAllowsAndHardlyLess) {
  open(2160);
  const Time began = kit_.loop.now();
  for (std::uint64_t n = 0; kit_.loop.now() - began < hours(12); ++n) {
    ASSERT_TRUE(kit_.put(n));
    kit_.loop.run_for(seconds(20));
  }
  const double allowed = (2160 / 2 + 2160 / 144) * kBudgetUnit;
  const auto bytes = static_cast<double>(kit_.stats().flash_bytes_written.value());
  EXPECT_LE(bytes, allowed + 2 * kBudgetUnit);  // the last frame may go beyond it
  EXPECT_GE(bytes, 0.95 * allowed);
  EXPECT_GT(kit_.stats().segments_evicted.value(), 50U);
  EXPECT_GT(dropped(), 900U);
}

TEST_F(BudgetTest, AStoreThatShrinksHasTheBudgetOfItsNewSize) {
  constexpr double kRecords = 60;  // that may be written at the beginning
  open(144 * kRecords);
  kit_.close();
  const std::uint64_t larger = kit_.options.flash_bytes;
  kit_.options.flash_bytes -= 4 * kit_.options.segment_bytes;
  ASSERT_TRUE(kit_.open()) << kit_.why;
  for (std::uint64_t n = 0; kit_.put(n, 1, AckLevel::kWritten); ++n) ASSERT_LE(n, kRecords);
  const double share = static_cast<double>(kit_.options.flash_bytes) / static_cast<double>(larger);
  const auto bytes = static_cast<double>(kit_.stats().flash_bytes_written.value());
  EXPECT_LE(bytes, share * kRecords * kBudgetUnit + 2 * kBudgetUnit);  // the last frame may go beyond it
  EXPECT_GE(bytes, 0.95 * share * kRecords * kBudgetUnit);
}

TEST_F(BudgetTest, ImpossibleBudgetsAreRefused) {
  for (const double bad : {-1.0, 1001.0, std::numeric_limits<double>::quiet_NaN()}) {
    kit_.options.drive_writes_per_day = bad;
    EXPECT_FALSE(kit_.open());
    EXPECT_NE(kit_.why.find("drive writes a day are not possible"), std::string::npos) << kit_.why;
  }
}

}  // namespace
}  // namespace kvd::store
