// Tests of the flash tier's breaker: many errors, a device that does nothing at all, and one operation that hangs while
// all others go on.
#include <optional>

#include <gtest/gtest.h>

#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

class FlashHealthTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(kit_.open()) << kit_.why;
    for (std::uint64_t n = 0; n < 10; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
    ASSERT_TRUE(kit_.reopen());
    kit_.passing = true;  // so that every get reads from flash
  }
  // For as long as the tier stays on, at most `limit`: a read every second. How long that was.
  Duration read_on(Duration limit) {
    const Time start = kit_.loop.now();
    while (kit_.stats().tier_off.value() == 0 && kit_.loop.now() < after(start, limit)) {
      if (kit_.lookup(9) == Tier::kFlash) {
        EXPECT_EQ(kit_.get(9), 1U) << "reads go on";
      }
      kit_.loop.run_for(std::chrono::seconds(1));
    }
    return kit_.loop.now() - start;
  }

  StoreKit kit_;
};

TEST_F(FlashHealthTest, AFlushThatHangsIsNoticedThoughReadsGoOn) {
  kit_.loop.run_for(Millis(20));
  std::optional<Code> code;
  kit_.drive().stall(1, Duration::max());
  kit_.store->await(kit_.ns, id_of(1), AckLevel::kSynced,
                    [&](Status status) { code = status ? Code::kOk : status.error().code; });
  const Duration took = read_on(std::chrono::minutes(5));
  EXPECT_GE(took, std::chrono::seconds(30)) << "a flush may wait for what others write";
  EXPECT_LE(took, std::chrono::seconds(32));
  EXPECT_EQ(kit_.stats().tier_off.value(), 1U);
  EXPECT_EQ(code, Code::kIo);
  kit_.kill();
}

TEST_F(FlashHealthTest, AHeaderThatHangsIsNoticedThoughReadsGoOn) {
  const auto evicted = [&] { return kit_.stats().segments_evicted.value(); };
  for (std::uint64_t n = 100; evicted() == 0; ++n) {
    kit_.passing = true;
    EXPECT_EQ(kit_.get(9), 1U);  // its segment stays
    std::optional<Code> code;
    kit_.start_put(n, code);
    while (!code && evicted() == 0) kit_.loop.run_for(std::chrono::microseconds(20));
    if (evicted() > 0) {
      kit_.drive().stall(1, Duration::max());  // the segment's footer is being read; its next header comes after that
      kit_.loop.run_for(Millis(5));
    }
  }
  const Duration took = read_on(std::chrono::minutes(5));
  EXPECT_GE(took, std::chrono::seconds(9));
  EXPECT_LE(took, std::chrono::seconds(12));
  EXPECT_EQ(kit_.stats().tier_off.value(), 1U);
  kit_.kill();
}

// What takes long and comes back is no reason.
TEST_F(FlashHealthTest, ASlowFlushIsWaitedFor) {
  kit_.loop.run_for(Millis(20));
  std::optional<Code> code;
  kit_.drive().stall(1, std::chrono::seconds(25));
  kit_.store->await(kit_.ns, id_of(1), AckLevel::kSynced,
                    [&](Status status) { code = status ? Code::kOk : status.error().code; });
  read_on(std::chrono::seconds(60));
  EXPECT_EQ(code, Code::kOk);
  EXPECT_EQ(kit_.stats().tier_off.value(), 0U);
}

class BreakerTest : public ::testing::Test {
 protected:
  void open() { ASSERT_TRUE(kit_.open()) << kit_.why; }

  StoreKit kit_;
};

TEST_F(BreakerTest, ManyErrorsTurnTheTierOffAndThePoolGoesOn) {
  open();
  for (std::uint64_t n = 0; n < 10; ++n) ASSERT_TRUE(kit_.put(n));
  ASSERT_TRUE(kit_.reopen());
  for (std::uint64_t i = 1; i <= 40; ++i) kit_.drive().inject(io::DiskOp::Kind::kRead, i, io::SimFault::kError);
  for (std::uint64_t n = 0; n < 10; ++n) kit_.get(n);
  kit_.loop.run_for(Millis(1));
  EXPECT_EQ(kit_.stats().tier_off.value(), 1u);
  EXPECT_EQ(kit_.log.count("flash tier turned off"), 1u);
  for (std::uint64_t n = 0; n < 10; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kNone) << "it must promise nothing";
  for (std::uint64_t n = 100; n < 200; ++n) ASSERT_TRUE(kit_.put(n));
  EXPECT_EQ(kit_.get(199), 1u);
  EXPECT_EQ(kit_.put(200, 1, AckLevel::kWritten).error().code, Code::kIo);
  kit_.close();
  EXPECT_EQ(kit_.log.count("the flash tier is off: what is in memory only is lost"), 1u);
}

TEST_F(BreakerTest, ARemovalTellsWhatATierThatIsOffHolds) {
  open();
  for (std::uint64_t n = 0; n < 10; ++n) ASSERT_TRUE(kit_.put(n));
  ASSERT_TRUE(kit_.reopen());
  for (std::uint64_t i = 1; i <= 16; ++i) kit_.drive().inject(io::DiskOp::Kind::kRead, i, io::SimFault::kError);
  for (std::uint64_t n = 0; n < 9; ++n) kit_.get(n);
  kit_.loop.run_for(Millis(1));
  ASSERT_EQ(kit_.stats().tier_off.value(), 1u);
  EXPECT_TRUE(kit_.remove(9));
  EXPECT_FALSE(kit_.remove(9));
  EXPECT_FALSE(kit_.remove(10));
}

TEST_F(BreakerTest, AHangingDiskTurnsTheTierOffInsteadOfFillingThePool) {
  open();
  std::optional<Code> code;
  kit_.drive().stall(UINT64_MAX, Duration::max());
  kit_.start_put(1, code);
  kit_.loop.run_for(std::chrono::seconds(25));
  EXPECT_EQ(kit_.stats().tier_off.value(), 1u);
  for (std::uint64_t n = 100; n < 200; ++n) ASSERT_TRUE(kit_.put(n));
  kit_.kill();
}

// After a stop of the process its timers see seconds in which nothing ran.
TEST_F(BreakerTest, AWatchdogThatComesLateDoesNotTakeTheDeviceForHanging) {
  open();
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kWritten));  // a segment is open
  kit_.loop.run_for(Millis(50));
  std::optional<Code> code;
  kit_.drive().stall(1, std::chrono::seconds(15));
  kit_.start_put(1, code);
  kit_.loop.run_for(Millis(500));  // the frame is on its way
  kit_.clock.advance_to(after(kit_.loop.now(), std::chrono::seconds(12)));
  kit_.loop.run_for(std::chrono::seconds(5));
  EXPECT_EQ(kit_.stats().tier_off.value(), 0u);
  EXPECT_EQ(code, Code::kOk);
}

}  // namespace
}  // namespace kvd::store
