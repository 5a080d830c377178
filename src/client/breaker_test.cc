#include "client/breaker.h"

#include <gtest/gtest.h>

namespace kvd::client {
namespace {

constexpr Duration kPeriod = Millis(1000);
Time at(std::int64_t ms) { return Time(Millis(ms)); }

TEST(Breaker, OpensAfterTheConfiguredNumberOfFailuresInARow) {
  Breaker breaker(3, kPeriod);
  EXPECT_FALSE(breaker.on_failure(at(0)));
  EXPECT_FALSE(breaker.on_failure(at(1)));
  EXPECT_FALSE(breaker.open());
  EXPECT_TRUE(breaker.on_failure(at(2)));
  EXPECT_TRUE(breaker.open());
}

TEST(Breaker, AnAnswerInBetweenStartsTheCountAgain) {
  Breaker breaker(2, kPeriod);
  breaker.on_failure(at(0));
  breaker.on_success();
  EXPECT_FALSE(breaker.on_failure(at(1)));
  EXPECT_FALSE(breaker.open());
}

TEST(Breaker, ProbesOncePerPeriodAndNotWhileAProbeIsUnderWay) {
  Breaker breaker(1, kPeriod);
  EXPECT_EQ(breaker.probe_at(), kNever);
  breaker.on_failure(at(100));
  EXPECT_EQ(breaker.probe_at(), at(1100));
  breaker.on_probe_sent();
  EXPECT_EQ(breaker.probe_at(), kNever);
  EXPECT_EQ(breaker.on_probe_failure(at(2100)), 1U);
  EXPECT_EQ(breaker.probe_at(), at(3100));
  breaker.on_probe_sent();
  EXPECT_EQ(breaker.on_probe_failure(at(4100)), 2U);
}

TEST(Breaker, OnlyAProbeClosesIt) {
  Breaker breaker(1, kPeriod);
  breaker.on_failure(at(0));
  breaker.on_success();
  EXPECT_TRUE(breaker.open());
  breaker.on_probe_sent();
  breaker.on_probe_success();
  EXPECT_FALSE(breaker.open());
  EXPECT_EQ(breaker.probe_at(), kNever);
}

TEST(Breaker, FailuresWhileOpenDoNotMoveTheProbe) {
  Breaker breaker(1, kPeriod);
  breaker.on_failure(at(0));
  EXPECT_FALSE(breaker.on_failure(at(500)));
  EXPECT_EQ(breaker.probe_at(), at(1000));
}

TEST(Breaker, AProbeThatFailsAfterItWasClosedChangesNothing) {
  Breaker breaker(1, kPeriod);
  breaker.on_failure(at(0));
  breaker.on_probe_sent();
  breaker.on_probe_success();
  EXPECT_EQ(breaker.on_probe_failure(at(10)), 0U);
  EXPECT_FALSE(breaker.open());
}

}  // namespace
}  // namespace kvd::client
