// Scrubbing: damage that nobody has asked for yet is found, once and for good, at a bounded rate and without a trace
// where there is none.
#include "store/scrubber.h"

#include <optional>

#include <gtest/gtest.h>

#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

constexpr std::uint64_t kScrubbed = 30;
constexpr std::uint64_t kRate = std::uint64_t{1} << 20;

class ScrubberTest : public ::testing::Test {
 protected:
  // A store whose records are all on flash only, in sealed segments, opened with scrubbing at `rate`.
  void fill(std::uint64_t rate, std::uint64_t records = kScrubbed) {
    kit_.options.flash_bytes = kHeadBytes + 16 * kit_.options.segment_bytes;
    ASSERT_TRUE(kit_.open()) << kit_.why;
    for (std::uint64_t n = 0; n < records; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
    kit_.close();
    kit_.options.scrub_bytes_per_s = rate;
  }
  void open() {
    ASSERT_TRUE(kit_.open()) << kit_.why;
    begun_ = kit_.loop.now();
  }
  std::uint64_t place_of(std::uint64_t number, std::uint32_t layer) {
    return kit_.find_on_drive(number, 1, layer).value();
  }
  [[nodiscard]] std::vector<std::uint64_t> missing(std::uint64_t records = kScrubbed) const {
    std::vector<std::uint64_t> numbers;
    for (std::uint64_t n = 0; n < records; ++n)
      if (kit_.lookup(n) == Tier::kNone) numbers.push_back(n);
    return numbers;
  }
  void one_pass() {
    const std::uint64_t passes = kit_.stats().scrub_passes.value();
    for (int i = 0; i < 100 && kit_.stats().scrub_passes.value() == passes; ++i)
      kit_.loop.run_for(std::chrono::seconds(1));
    ASSERT_EQ(kit_.stats().scrub_passes.value(), passes + 1);
  }

  StoreKit kit_;
  Time begun_{};
};

TEST_F(ScrubberTest, DropsWhatIsDamagedForGoodAndNothingElse) {
  fill(kRate);
  kit_.drive().flip_bit(place_of(7, 2) + 1234, 5);
  kit_.drive().flip_bit(place_of(8, 0) - kPageBytes + 40, 1);  // its table
  open();
  EXPECT_TRUE(missing().empty()) << "nobody knows yet";
  one_pass();
  EXPECT_EQ(missing(), (std::vector<std::uint64_t>{7, 8}));
  EXPECT_EQ(kit_.stats().corrupt.value(), 2U);
  EXPECT_GT(kit_.log.count("records were damaged and are dropped"), 0U);
  for (std::uint64_t n = 0; n < kScrubbed; ++n) EXPECT_EQ(kit_.get(n), n == 7 || n == 8 ? 0U : 1U);
  ASSERT_TRUE(kit_.put(7, 2, AckLevel::kWritten));  // what the next request for it does
  kit_.kill();
  kit_.options.scrub_bytes_per_s = 0;
  open();
  EXPECT_EQ(kit_.get(7), 2U);
  EXPECT_EQ(kit_.lookup(8), Tier::kNone) << "its tombstone was written";
}

TEST_F(ScrubberTest, ASoundImageInThePoolIsWrittenAnewForWhoWantsIt) {
  fill(kRate);
  open();
  const std::uint64_t place = place_of(7, 2);
  ASSERT_EQ(kit_.get(7), 1U);
  kit_.drive().flip_bit(place + 1234, 5);
  one_pass();
  EXPECT_EQ(kit_.stats().corrupt.value(), 1U);
  EXPECT_EQ(kit_.get(7), 1U) << "from the pool";
  ASSERT_TRUE(kit_.put(7, 1, AckLevel::kWritten));
  kit_.kill();
  kit_.options.scrub_bytes_per_s = 0;
  open();
  EXPECT_EQ(kit_.get(7), 1U);
}

TEST_F(ScrubberTest, WhatIsRightAtTheSecondReadStays) {
  fill(kRate);
  open();
  io::SimFaultRates rates;
  rates.read_flip = 500'000;
  kit_.drive().set_fault_rates(rates);
  kit_.loop.run_for(Millis(400));
  kit_.drive().set_fault_rates({});
  EXPECT_GT(kit_.drive().faults(), 0U);
  const std::uint64_t unlucky = kit_.stats().corrupt.value();  // wrong twice
  EXPECT_LT(unlucky, kit_.drive().faults());
  EXPECT_EQ(missing().size(), unlucky);
  one_pass();
  EXPECT_EQ(kit_.stats().corrupt.value(), unlucky);
}

TEST_F(ScrubberTest, APlaceThatCannotBeReadCostsItsRecordOnly) {
  fill(kRate);
  kit_.drive().wear_out(io::DiskOp::Kind::kRead, place_of(11, 1), 1);
  open();
  one_pass();
  EXPECT_EQ(missing(), std::vector<std::uint64_t>{11});
  EXPECT_EQ(kit_.stats().tier_off.value(), 0U);
}

TEST_F(ScrubberTest, KeepsToItsRateAndRestsForADay) {
  fill(kRate);
  open();
  const std::uint64_t other = kit_.stats().flash_bytes_read.value() - kit_.stats().scrubbed_bytes.value();
  for (int i = 1; i <= 10; ++i) {
    kit_.loop.run_for(Millis(50));
    const std::uint64_t read = kit_.stats().scrubbed_bytes.value();
    EXPECT_EQ(read, kit_.stats().flash_bytes_read.value() - other);
    EXPECT_LE(read, kRate * static_cast<std::uint64_t>(i) / 20 + Scrubber::kReadBytes);
  }
  one_pass();
  const std::uint64_t one = kit_.stats().scrubbed_bytes.value();
  EXPECT_GT(one, kScrubbed * 4 * 5000);
  const Time next = after(begun_, Scrubber::kPassMin);
  kit_.loop.run_for(next - kit_.loop.now() - std::chrono::seconds(1));
  EXPECT_EQ(kit_.stats().scrubbed_bytes.value(), one);
  one_pass();
  EXPECT_EQ(kit_.stats().scrubbed_bytes.value(), 2 * one);
}

TEST_F(ScrubberTest, IsNoUse) {
  fill(64 * kRate, 12);
  open();
  one_pass();
  for (std::uint64_t n = 100; kit_.stats().segments_evicted.value() == 0; ++n) {
    ASSERT_LT(n, 300U);
    ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  }
  EXPECT_FALSE(missing(12).empty()) << "the oldest go first";
}

TEST_F(ScrubberTest, RecordsLargerThanAReadAreReadWhole) {
  kit_.options.segment_bytes = std::uint64_t{8} << 20;
  kit_.options.pool_bytes = std::uint64_t{16} << 20;
  kit_.name_space = namespace_of(3, 700 << 10);
  fill(64 * kRate, 8);
  kit_.drive().flip_bit(place_of(3, 2) + (650 << 10), 0);
  open();
  one_pass();
  EXPECT_EQ(missing(8), std::vector<std::uint64_t>{3});
}

TEST_F(ScrubberTest, SegmentsComeAndGoUnderIt) {
  fill(256 * kRate);
  open();
  for (std::uint64_t n = 100; n < 400; ++n) {
    ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
    EXPECT_EQ(kit_.get(n), 1U);
    if (n % 7 == 0) {
      EXPECT_TRUE(kit_.remove(n));
    }
    EXPECT_EQ(kit_.get(n), n % 7 == 0 ? 0U : 1U);
    kit_.loop.run_for(Millis(1));
  }
  EXPECT_GT(kit_.stats().segments_evicted.value(), 10U);
  EXPECT_GT(kit_.stats().scrubbed_bytes.value(), std::uint64_t{1} << 20);
  EXPECT_EQ(kit_.stats().corrupt.value(), 0U);
  kit_.close();  // with a read under way, or not
}

TEST_F(ScrubberTest, EndsWithTheTier) {
  fill(kRate);
  open();
  kit_.drive().stall(1, Duration::max());
  kit_.loop.run_for(std::chrono::minutes(1));
  EXPECT_EQ(kit_.stats().tier_off.value(), 1U);
  const std::uint64_t read = kit_.stats().scrubbed_bytes.value();
  kit_.loop.run_for(std::chrono::hours(48));
  EXPECT_EQ(kit_.stats().scrubbed_bytes.value(), read);
}

}  // namespace
}  // namespace kvd::store
