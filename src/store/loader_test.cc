// Tests of how records are read from flash together: neighbours share an operation, and what goes wrong in one of them
// costs nobody else anything; and of promotions, which wait for gets and must hold up nobody.
#include "store/loader.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

constexpr std::uint64_t kNeighbours = 24;  // images of 36 KiB: 28 fit into an operation of 1 MiB

class LoaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    kit_.options.pool_bytes = 4 << 20;
    kit_.options.segment_bytes = 1 << 20;  // all in one segment
    kit_.options.flash_bytes = kHeadBytes + 8 * kit_.options.segment_bytes;
    ASSERT_TRUE(kit_.open()) << kit_.why;
    for (std::uint64_t n = 0; n < kNeighbours; ++n) ASSERT_TRUE(kit_.put(n));
    kit_.settle();
    ASSERT_TRUE(kit_.reopen()) << kit_.why;
  }
  // One request for these records, whole; which of them came. Bytes are compared.
  std::vector<bool> get_at_once(const std::vector<std::uint64_t>& numbers) {
    std::vector<Get> gets(numbers.size());
    std::vector<std::vector<std::byte>> foreign;
    std::vector<bool> got(numbers.size());
    std::size_t pending = numbers.size();
    for (const std::uint64_t n : numbers) foreign.push_back(foreign_of(n));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      gets[i].ns = kit_.ns;
      gets[i].id = id_of(numbers[i]);
      gets[i].foreign = foreign[i];
      gets[i].on_done = [&, i](Result<RecordView> view) {
        --pending;
        got[i] = view.has_value();
        for (std::uint32_t layer = 0; view && layer < 4; ++layer)
          EXPECT_TRUE(
              slab_is({view->first_slab + std::size_t{layer} * view->slab_stride, 5'000}, numbers[i], 1, layer));
      };
      kit_.store->start_get(gets[i]);
    }
    EXPECT_TRUE(kit_.loop.run_until([&] { return pending == 0; }, std::chrono::minutes(1)));
    return got;
  }
  [[nodiscard]] std::uint64_t reads() { return kit_.drive().counters().reads; }
  static std::vector<std::uint64_t> all() {
    std::vector<std::uint64_t> numbers;
    for (std::uint64_t n = 0; n < kNeighbours; ++n) numbers.push_back(n);
    return numbers;
  }
  static std::size_t count(const std::vector<bool>& got) {
    return static_cast<std::size_t>(std::ranges::count(got, true));
  }

  StoreKit kit_;
};

TEST_F(LoaderTest, NeighboursOfOneRequestShareAnOperation) {
  const std::uint64_t before = reads();
  EXPECT_EQ(count(get_at_once(all())), kNeighbours);
  EXPECT_LE(reads() - before, 3u);
}

TEST_F(LoaderTest, RecordsThatLieApartAreReadByThemselves) {
  // Every second one: the gaps are 36 KiB, and reading them would take longer than another operation.
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t n = 0; n < kNeighbours; n += 2) numbers.push_back(n);
  const std::uint64_t before = reads();
  EXPECT_EQ(count(get_at_once(numbers)), numbers.size());
  EXPECT_EQ(reads() - before, numbers.size());
}

TEST_F(LoaderTest, AnErrorOfASharedOperationIsNobodysLoss) {
  kit_.drive().inject(io::DiskOp::Kind::kRead, 1, io::SimFault::kError);
  EXPECT_EQ(count(get_at_once(all())), kNeighbours);
}

TEST_F(LoaderTest, ADamagedRecordCostsItsNeighboursNothing) {
  kit_.drive().flip_bit(kit_.find_on_drive(9, 1, 2).value() + 100, 3);
  const auto got = get_at_once(all());
  EXPECT_EQ(count(got), kNeighbours - 1);
  EXPECT_FALSE(got[9]);
  EXPECT_EQ(kit_.stats().corrupt.value(), 1u);
}

TEST_F(LoaderTest, AnUnreadableRecordCostsItsNeighboursNothing) {
  // The shared operation fails, then the record's own; the others' second reads succeed.
  kit_.drive().inject(io::DiskOp::Kind::kRead, 1, io::SimFault::kError);
  kit_.drive().inject(io::DiskOp::Kind::kRead, 2, io::SimFault::kError);
  EXPECT_GE(count(get_at_once({3, 4, 5, 6})), 3u);
}

// Days may lie between two errors of a record whose layers are read by and by.
TEST_F(LoaderTest, AnErrorCostsNothingWhereAnotherLayerHadOneBefore) {
  for (std::uint16_t layer = 0; layer < 4; ++layer) {
    kit_.drive().inject(io::DiskOp::Kind::kRead, 1, io::SimFault::kError);
    EXPECT_EQ(kit_.get(3, layer, 1), 1u) << layer;
  }
  EXPECT_EQ(kit_.stats().io_errors.value(), 4u);
}

TEST_F(LoaderTest, ARecordThatHadAnErrorIsReadTogetherWithItsNeighboursAgain) {
  kit_.drive().inject(io::DiskOp::Kind::kRead, 1, io::SimFault::kError);
  EXPECT_EQ(kit_.get(3, 0, 1), 1u);
  const std::uint64_t before = reads();
  EXPECT_EQ(count(get_at_once({2, 3, 4})), 3u);
  EXPECT_EQ(reads() - before, 1u);
}

TEST_F(LoaderTest, ARecordIsDroppedWhenOneOfItsLayersFailsTwice) {
  EXPECT_EQ(kit_.get(3, 1, 1), 1u);
  kit_.drive().inject(io::DiskOp::Kind::kRead, 1, io::SimFault::kError);
  kit_.drive().inject(io::DiskOp::Kind::kRead, 2, io::SimFault::kError);
  EXPECT_EQ(kit_.get(3, 2, 1), 0u);
  EXPECT_EQ(kit_.lookup(3), Tier::kNone);
}

// What one outage of a moment fails is one failure, however many operations it meets.
TEST_F(LoaderTest, ErrorsOfSeveralOperationsOfARecordAreForgivenOnceEach) {
  kit_.close();
  kit_.name_space = namespace_of(4, 300'000, "large");  // a layer is an operation
  kit_.options.segment_bytes = 8 << 20;
  kit_.options.flash_bytes = kHeadBytes + 8 * kit_.options.segment_bytes;
  kit_.options.dir += "2";
  kit_.options.pool_bytes = 8 << 20;
  ASSERT_TRUE(kit_.open()) << kit_.why;
  ASSERT_TRUE(kit_.put(1));
  ASSERT_TRUE(kit_.reopen()) << kit_.why;
  for (std::uint64_t nth = 1; nth <= 4; ++nth) kit_.drive().inject(io::DiskOp::Kind::kRead, nth, io::SimFault::kError);
  EXPECT_EQ(kit_.get(1), 1u);
  EXPECT_EQ(kit_.stats().io_errors.value(), 4u);
}

// Layers come without the table, which is damaged, when the get has gone: nothing will tell whether they are sound.
TEST_F(LoaderTest, WhatNobodyWaitsForAnyMoreDoesNotKeepItsSegment) {
  std::array<std::byte, kPageBytes> before{}, now{};
  kit_.drive().peek(kit_.segment_at(0), before);
  kit_.drive().hold_back(kit_.find_on_drive(3).value(), 4 * 5'000, Millis(50));
  kit_.drive().flip_bit(kit_.find_on_drive(3).value() - kPageBytes, 3);
  bool over = false;
  const std::vector<std::byte> foreign = foreign_of(3);
  Get get;
  get.ns = kit_.ns;
  get.id = id_of(3);
  get.foreign = foreign;
  get.layer_first = 1;
  get.deadline = after(kit_.loop.now(), std::chrono::microseconds(10));
  get.on_done = [&over](const Result<RecordView>&) { over = true; };
  const std::uint64_t reads_before = reads();
  kit_.store->start_get(get);
  ASSERT_TRUE(kit_.loop.run_until([&] { return over; }, std::chrono::seconds(1)));
  kit_.loop.run_for(std::chrono::seconds(1));
  ASSERT_EQ(reads() - reads_before, 2U) << "the table, and the layers";
  for (std::uint64_t n = 1'000; n < 1'300; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  kit_.loop.run_for(std::chrono::seconds(1));
  kit_.drive().peek(kit_.segment_at(0), now);
  EXPECT_TRUE(now != before) << "it was given up, and is used again";
}

// More gets than the device takes at once wait all the time, so promotions never get their turn: of one record of each
// segment, which nobody else asks for.
class ConstantDemandTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kApart = 6;  // a segment holds six records or seven
  static constexpr std::size_t kAtOnce = 2 * Loader::kOpsMax;

  void SetUp() override {
    kit_.options.pool_bytes = 2 << 20;
    kit_.options.flash_bytes = kHeadBytes + 12 * kit_.options.segment_bytes;
    kit_.options.demote_idle = Millis(5);
    ASSERT_TRUE(kit_.open()) << kit_.why;
    for (; put_ < 60; ++put_) ASSERT_TRUE(kit_.put(put_, 1, AckLevel::kWritten));
    ASSERT_TRUE(kit_.reopen()) << kit_.why;
    keep_asking();
  }
  void TearDown() override {
    ask_.disarm();
    kit_.kill();
  }
  void keep_asking() {
    gets_.forget_over();
    // Backwards, so that none shares an operation with the one before.
    for (std::uint64_t tried = 0; gets_.size() < kAtOnce && tried < 2 * put_; ++tried) {
      next_ = next_ == 0 ? put_ - 1 : next_ - 1;
      if (next_ % kApart != 0 && kit_.lookup(next_) == Tier::kFlash) gets_.ask(next_, kNever, 1);
    }
    for (std::uint64_t n = 0; n < put_ && gets_.size() == kAtOnce; n += kApart)
      if (kit_.lookup(n) == Tier::kFlash) kit_.store->promote(kit_.ns, id_of(n));
    ask_.arm_in(std::chrono::microseconds(500));
  }
  // What was put leaves the pool, and is asked for from flash.
  void crowd_out() {
    std::vector<PutHandle> unfinished;
    for (std::uint64_t n = 10'000;; ++n) {
      auto put = kit_.store->begin_put(kit_.ns, id_of(n), foreign_of(n));
      if (!put) return;
      unfinished.push_back(std::move(*put));
    }
  }

  StoreKit kit_{1, {.latency_min = Millis(5), .latency_max = Millis(10)}};
  ManyGets gets_{kit_};
  std::uint64_t put_ = 0, next_ = 0;
  io::Timer ask_{kit_.loop, [this] { keep_asking(); }};
};

TEST_F(ConstantDemandTest, PromotionsThatWaitDoNotKeepSegmentsFromBeingUsedAgain) {
  const std::uint64_t before = kit_.stats().segments_evicted.value();
  for (const std::uint64_t end = put_ + 300; put_ < end; ++put_) {
    ASSERT_TRUE(kit_.put(put_, 1, AckLevel::kWritten)) << "put " << put_;
    crowd_out();
  }
  EXPECT_GT(kit_.stats().segments_evicted.value() - before, 20U);
  EXPECT_GT(gets_.hits(), 5'000U) << "gets go on";
}

TEST_F(ConstantDemandTest, PromotionsGoOnWhenNobodyWaitsAnyMore) {
  kit_.loop.run_for(std::chrono::seconds(1));
  EXPECT_EQ(kit_.lookup(36), Tier::kFlash);
  ask_.disarm();
  kit_.loop.run_for(std::chrono::seconds(1));
  EXPECT_EQ(kit_.lookup(36), Tier::kPool);
}

}  // namespace
}  // namespace kvd::store
