// Tests of the base room: readers stop at the end, quantiles bound, seeds replay, rate limits count, errors have words.
#include <array>
#include <barrier>
#include <cerrno>
#include <thread>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/random.h"
#include "base/result.h"
#include "base/time.h"

namespace kvd {
namespace {

TEST(ByteReader, StaysFailedAfterReadingPastTheEnd) {
  const std::array<std::byte, 3> bytes{std::byte{1}, std::byte{2}, std::byte{3}};
  ByteReader reader(bytes);
  EXPECT_EQ(reader.read<std::uint16_t>(), 0x0201);
  EXPECT_EQ(reader.read<std::uint16_t>(), 0);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.read<std::uint8_t>(), 0);
  EXPECT_FALSE(reader.done());
}

TEST(ByteReader, DoneOnlyWhenNothingIsLeft) {
  const std::array<std::byte, 2> bytes{};
  ByteReader reader(bytes);
  EXPECT_EQ(reader.read_bytes(1).size(), 1u);
  EXPECT_FALSE(reader.done());
  EXPECT_EQ(reader.read_bytes(1).size(), 1u);
  EXPECT_TRUE(reader.done());
}

TEST(ErrorText, HasTheSystemsWords) {
  EXPECT_EQ(error_text(EACCES), "Permission denied");
  EXPECT_EQ(error_text(123'456), "error 123456");
  EXPECT_EQ(error_text(Error{Code::kIo, ENOSPC, "write"}), "write: No space left on device");
  EXPECT_EQ(error_text(Error{Code::kInvalid, 0, "too large"}), "too large");
}

TEST(Random, SameSeedSameNumbers) {
  Random a(7), b(7), c(8);
  const auto first = a.next();
  EXPECT_EQ(first, b.next());
  EXPECT_NE(first, c.next());
}

TEST(SharedCounter, LosesNothingOfSeveralThreads) {
  constexpr int kTimes = 1'000'000;
  SharedCounter counter;
  std::barrier together(2);
  const auto add = [&] {
    together.arrive_and_wait();
    for (int i = 0; i < kTimes; ++i) counter.add(2);
  };
  std::thread other(add);
  add();
  other.join();
  EXPECT_EQ(counter.value(), 4U * kTimes);
}

TEST(LatencyHistogram, QuantileIsAnUpperBoundWithinAFactorOfTwo) {
  LatencyHistogram h;
  EXPECT_EQ(h.quantile_us(0.5), 0u);
  for (int i = 0; i < 99; ++i) h.record_us(100);
  h.record_us(1'000'000);
  EXPECT_GE(h.quantile_us(0.5), 100u);
  EXPECT_LE(h.quantile_us(0.5), 200u);
  EXPECT_GE(h.quantile_us(1.0), 1'000'000u);
}

TEST(LatencyHistogram, AFineOneTellsAnEighthOfAPowerApart) {
  for (const std::uint64_t us : {0U, 1U, 7U, 8U, 9U, 100U, 287U, 288U, 300U, 4095U, 16777215U}) {
    SCOPED_TRACE(us);
    FineLatencyHistogram h;
    h.record_us(us);
    const std::uint64_t bound = h.quantile_us(0.99);
    EXPECT_GT(bound, us);
    EXPECT_LE(bound, us + us / 8 + 1);
  }
}

// Every value has one bucket: the bound of the one before is not above it.
TEST(LatencyHistogram, BoundsAreWhereTheBucketsEnd) {
  const auto check = []<std::size_t kParts>(const PowerHistogram<kParts>&) {
    for (std::size_t i = 0; i + 2 < PowerHistogram<kParts>::kBuckets; ++i) {
      PowerHistogram<kParts> h;
      h.record_us(h.bound_us(i));
      EXPECT_EQ(h.quantile_us(1.0), h.bound_us(i + 1));
    }
  };
  check(LatencyHistogram());
  check(FineLatencyHistogram());
  FineLatencyHistogram beyond;
  beyond.record_us(std::uint64_t{1} << 40);
  EXPECT_EQ(beyond.snapshot().back(), 1U);
}

TEST(RateLimited, SaysHowManyItHeldBack) {
  RecordingLog log;
  RateLimited limited(std::chrono::seconds(1));
  const Time start{};
  limited.warn(log, start, "slow");
  limited.warn(log, start, "slow");
  limited.warn(log, start + std::chrono::milliseconds(999), "slow");
  EXPECT_EQ(log.count("slow"), 1u);
  limited.warn(log, start + std::chrono::seconds(1), "slow");
  EXPECT_EQ(log.count("(2 more since"), 1u);
}

TEST(Time, NeverStaysNever) {
  EXPECT_EQ(after(kNever, std::chrono::hours(1)), kNever);
  EXPECT_EQ(after(Time{} + Duration(5), Duration(7)), Time{} + Duration(12));
}

TEST(Result, CarriesCodeAndErrno) {
  const Result<int> failed = fail(Code::kIo, "reading", 5);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error(), (Error{Code::kIo, 5, ""}));
  EXPECT_EQ(code_name(failed.error().code), "io");
}

TEST(CheckDeathTest, AbortsAndNamesTheExpression) { EXPECT_DEATH(KVD_CHECK(1 + 1 == 3), "1 \\+ 1 == 3"); }

}  // namespace
}  // namespace kvd
