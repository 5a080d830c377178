// Tests of the flash tier's breaker: many errors, a device that does nothing at all, one operation that hangs while
// all others go on, and reads that take too long.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

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

// Who asks ends by a deadline of its own, so it is lookups that tell whether the device is worth anything.
class SlowReadsTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kRecords = 40;

  explicit SlowReadsTest(const io::SimDiskModel& model = {}) : kit_(1, model) {}
  void SetUp() override {
    kit_.options.demote_idle = Millis(5);
    kit_.options.pool_bytes = pool_bytes_;
    kit_.options.flash_bytes = (4 << 20) + segments_ * kit_.options.segment_bytes;
    ASSERT_TRUE(kit_.open()) << kit_.why;
    for (std::uint64_t n = 0; n < kRecords; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
    ASSERT_TRUE(kit_.reopen());
  }
  void TearDown() override { kit_.kill(); }
  void ask(std::uint64_t n, Duration limit = Millis(100)) { gets_.ask(n, after(kit_.loop.now(), limit)); }
  // For `time`, or until the tier is off: `at_once` gets every `pause`, and a put once a second that is to be written.
  void go_on(Duration time, int at_once, Duration pause) {
    const Time end = after(kit_.loop.now(), time);
    Time put_at = kit_.loop.now();
    for (int i = 0; kit_.loop.now() < end && kit_.stats().tier_off.value() == 0; ++i) {
      for (int k = 0; k < at_once; ++k) ask(static_cast<std::uint64_t>(i * at_once + k) % kRecords);
      if (kit_.loop.now() >= put_at) {
        put_at = after(put_at, std::chrono::seconds(1));
        if (const Status put = kit_.put(put_next_++, 1, AckLevel::kWritten); put) ++written_;
      }
      kit_.loop.run_for(pause);
      gets_.forget_over();
    }
  }
  [[nodiscard]] std::uint64_t promised() const {
    std::uint64_t count = 0;
    for (std::uint64_t n = 0; n < kRecords; ++n) count += kit_.lookup(n) == Tier::kFlash ? 1 : 0;
    return count;
  }
  void returns() {
    kit_.drive().set_fault_rates({});
    kit_.drive().release();
    ASSERT_TRUE(kit_.loop.run_until([&] { return kit_.stats().tier_off.value() == 0; }, std::chrono::minutes(3)));
    EXPECT_EQ(kit_.log.count("is on again"), 1U);
    EXPECT_GT(promised(), 0U);
  }

  StoreKit kit_;
  std::uint64_t segments_ = 100;  // nothing is given up
  std::uint64_t pool_bytes_ = 16 << 20;
  ManyGets gets_{kit_};
  std::uint64_t written_ = 0, put_next_ = 1'000;
};

TEST_F(SlowReadsTest, TurnTheTierOffAndItComesBackWithTheirSpeed) {
  EXPECT_EQ(promised(), kRecords);
  kit_.drive().set_fault_rates(
      {.read_delay = 1'000'000, .read_delay_min = std::chrono::seconds(2), .read_delay_max = std::chrono::seconds(9)});
  const Time start = kit_.loop.now();
  go_on(std::chrono::minutes(3), 4, Millis(200));
  EXPECT_EQ(gets_.hits(), 0U);
  EXPECT_EQ(kit_.stats().tier_off.value(), 1U);
  EXPECT_LE(kit_.loop.now() - start, std::chrono::seconds(30));
  EXPECT_EQ(kit_.log.count("flash tier turned off: reads take too long"), 1U);
  EXPECT_EQ(promised(), 0U);
  kit_.loop.run_for(std::chrono::seconds(60));
  EXPECT_EQ(kit_.stats().tier_off.value(), 1U) << "a probe is no faster";
  EXPECT_GE(kit_.log.count("stays off: a probe's read takes too long"), 1U);
  EXPECT_EQ(promised(), 0U);
  returns();
}

TEST_F(SlowReadsTest, TurnTheTierOffWhereOneAfterTheOtherIsAskedFor) {
  kit_.drive().set_fault_rates(
      {.read_delay = 1'000'000, .read_delay_min = std::chrono::seconds(4), .read_delay_max = std::chrono::seconds(5)});
  go_on(std::chrono::minutes(3), 1, std::chrono::seconds(5));
  EXPECT_EQ(kit_.stats().tier_off.value(), 1U);
  returns();
}

TEST_F(SlowReadsTest, ThatHangWhileWritesCompleteTurnTheTierOff) {
  kit_.drive().stall(UINT64_MAX, Duration::max(), true);
  const Time start = kit_.loop.now();
  go_on(std::chrono::minutes(3), 4, Millis(200));
  EXPECT_GT(written_, 8U) << "the others go on";
  EXPECT_EQ(kit_.stats().tier_off.value(), 1U);
  EXPECT_LE(kit_.loop.now() - start, std::chrono::seconds(14));
  EXPECT_EQ(promised(), 0U);
  kit_.loop.run_for(std::chrono::seconds(60));
  EXPECT_EQ(kit_.stats().tier_off.value(), 1U) << "nobody knows when they land";
  returns();
}

TEST_F(SlowReadsTest, OneThatHangsWhileOthersCompleteTurnsTheTierOff) {
  kit_.drive().stall(1, Duration::max(), true);
  const Time start = kit_.loop.now();
  go_on(std::chrono::minutes(3), 4, Millis(200));
  EXPECT_EQ(kit_.stats().tier_off.value(), 1U);
  EXPECT_GE(kit_.loop.now() - start, std::chrono::seconds(30));
  EXPECT_LE(kit_.loop.now() - start, std::chrono::seconds(34));
  returns();
}

TEST_F(SlowReadsTest, AFewDoNotTurnTheTierOff) {
  for (int i = 0; i < 10; ++i) {
    kit_.drive().stall(2, std::chrono::seconds(9), true);
    go_on(std::chrono::seconds(20), 4, Millis(200));
  }
  EXPECT_EQ(kit_.stats().tier_off.value(), 0U);
  EXPECT_EQ(kit_.stats().tier_outages.value(), 0U);
}

// 32 reads of 4 MiB at a time from a disk of 150 MB/s, which stops for two seconds again and again.
class BusyDiskTest : public SlowReadsTest {
 protected:
  BusyDiskTest() : SlowReadsTest({.bytes_per_second = 150'000'000}) {
    kit_.name_space = namespace_of(1, 4 << 20);
    pool_bytes_ = std::uint64_t{512} << 20;
    kit_.options.segment_bytes = std::uint64_t{64} << 20;
    segments_ = 8;
  }
};

TEST_F(BusyDiskTest, StaysOn) {
  Duration slowest{};
  for (int round = 0; round < 8; ++round) {
    const Time pause_at = after(kit_.loop.now(), std::chrono::seconds(9));
    while (kit_.loop.now() < pause_at) {
      while (gets_.size() < 64) ask(put_next_++ % kRecords, std::chrono::minutes(1));
      const Time start = kit_.loop.now();
      kit_.loop.run_until([&] { return gets_.some_over(); }, std::chrono::seconds(30));
      slowest = std::max(slowest, kit_.loop.now() - start);
      gets_.forget_over();
    }
    kit_.drive().stall(32, std::chrono::seconds(2));
  }
  EXPECT_GE(slowest, std::chrono::seconds(1));
  EXPECT_GT(gets_.hits(), 1'500U);
  EXPECT_EQ(kit_.stats().tier_outages.value(), 0U);
}

}  // namespace
}  // namespace kvd::store
