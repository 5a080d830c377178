// Tests of a device that goes off and comes back while the store serves: what is found then, what is not, and what a
// start behind it finds.
#include <algorithm>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "store/store_impl.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

class OutageTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kHeld = 10;         // 0 to 9, on flash only
  static constexpr std::uint64_t kBreaking = 1'000;  // of which reads fail to turn the tier off; so they are dropped

  void open() {
    kit_.options.flash_bytes = kHeadBytes + 24 * kit_.options.segment_bytes;
    ASSERT_TRUE(kit_.open()) << kit_.why;
    for (std::uint64_t n = 0; n < 3 * kBreakers; ++n) ASSERT_TRUE(kit_.put(kBreaking + n, 1, AckLevel::kWritten));
    for (std::uint64_t n = 0; n < kHeld; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
    ASSERT_TRUE(kit_.reopen());
  }
  // Everything fails from now on, and the tier goes off. Takes less than 10 ms.
  void break_down() {
    kit_.drive().fail_all(EIO);
    kit_.passing = true;
    for (std::size_t i = 0; i < kBreakers; ++i) kit_.get(kBreaking + broken_++);
    kit_.passing = false;
    kit_.loop.run_for(Millis(1));
    ASSERT_EQ(kit_.stats().tier_off.value(), 1U);
  }
  void mend() {
    kit_.drive().fail_all(0);
    come_back();
  }
  void come_back() {
    ASSERT_TRUE(kit_.loop.run_until([&] { return kit_.stats().tier_off.value() == 0; }, minutes(3)));
  }
  // The machine stops now and starts again.
  void start_again(bool power = false) {
    power ? kit_.lose_power() : kit_.kill();
    kit_.drive().fail_all(0);
    ASSERT_TRUE(kit_.open()) << kit_.why;
  }
  // Other records take the place of all that is in the pool.
  void fill_pool() {
    for (int i = 0; i < 40; ++i) ASSERT_TRUE(kit_.put(filler_++));
  }
  Code await(std::uint64_t n, AckLevel level) {
    std::optional<Code> code;
    kit_.store->await(kit_.ns, id_of(n), level, [&](Status s) { code = s ? Code::kOk : s.error().code; });
    EXPECT_TRUE(kit_.loop.run_until([&] { return code.has_value(); }, minutes(1)));
    return *code;
  }
  std::optional<Code> await_removals() { return kit_.await_removals(minutes(1)); }
  // Though it leaves the pool, the device comes back, and the machine starts again.
  void expect_gone_for_good(std::uint64_t n) {
    fill_pool();
    mend();
    EXPECT_EQ(kit_.get(n), 0U);
    EXPECT_EQ(await_removals(), Code::kOk);
    start_again();
    EXPECT_EQ(kit_.get(n), 0U);
  }
  [[nodiscard]] bool on_flash(std::uint64_t n) const {
    return static_cast<const StoreImpl&>(*kit_.store).flash_bytes_of(kit_.ns, id_of(n)) > 0;
  }
  [[nodiscard]] io::SimCounters counters() { return kit_.drive().counters(); }

  StoreKit kit_;
  static constexpr std::size_t kBreakers = 8;
  std::size_t broken_ = 0;
  std::uint64_t filler_ = 5'000;
};

TEST_F(OutageTest, ADeviceThatWorksAgainServesWhatItHeld) {
  open();
  break_down();
  for (std::uint64_t n = 0; n < kHeld; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kNone);
  mend();
  for (std::uint64_t n = 0; n < kHeld; ++n) EXPECT_EQ(kit_.get(n), 1U);
  EXPECT_EQ(kit_.stats().tier_outages.value(), 1U);
  EXPECT_EQ(kit_.log.count("the flash tier is on again after 1 s (too many errors)"), 1U);
  EXPECT_TRUE(kit_.put(100, 1, AckLevel::kSynced));
  start_again(true);
  for (std::uint64_t n = 0; n < kHeld; ++n) EXPECT_EQ(kit_.get(n), 1U);
  EXPECT_EQ(kit_.get(100), 1U);
}

TEST_F(OutageTest, NothingIsSubmittedWhileItIsOff) {
  open();
  for (std::uint64_t n = 200; n < 204; ++n) ASSERT_TRUE(kit_.put(n));  // dirty
  break_down();
  const auto before = counters();
  const auto errors = kit_.stats().io_errors.value();
  const auto written = kit_.stats().flash_bytes_written.value();
  for (std::uint64_t n = 0; n < 5; ++n) kit_.store->promote(kit_.ns, id_of(n));
  for (std::uint64_t n = 0; n < 5; ++n) EXPECT_TRUE(kit_.remove(n));
  for (std::uint64_t n = 5; n < kHeld; ++n) EXPECT_EQ(kit_.get(n), 0U);
  fill_pool();
  EXPECT_EQ(await_removals(), Code::kIo);
  kit_.loop.run_for(Millis(900));
  EXPECT_EQ(counters().reads, before.reads);
  EXPECT_EQ(counters().writes, before.writes);
  EXPECT_EQ(counters().syncs, before.syncs);
  EXPECT_EQ(kit_.stats().io_errors.value(), errors);
  EXPECT_EQ(kit_.stats().flash_bytes_written.value(), written);
  kit_.loop.run_for(seconds(62));  // probes after 1, 3, 7, 15, 31 seconds
  EXPECT_EQ(counters().writes, before.writes + 5);
  EXPECT_EQ(counters().syncs, before.syncs);
}

// What is to be written is looked at in the very moment in which the breaker opens, before anybody is told.
TEST_F(OutageTest, WhatIsDueWhenItGoesOffIsNotTakenForBeyondTheWriteBudget) {
  kit_.options.demote_idle = FlashHealth::kStallMax;
  open();
  kit_.drive().stall(UINT64_MAX, Duration::max());
  std::optional<Code> written, waits;
  kit_.start_put(1'100, written);
  kit_.loop.settle();  // in a frame, which hangs
  kit_.start_put(1'101, waits);
  kit_.loop.run_for(FlashHealth::kStallMax);
  EXPECT_EQ(kit_.stats().tier_off.value(), 1U);
  EXPECT_EQ(written, Code::kIo);
  EXPECT_EQ(waits, Code::kIo);
  EXPECT_EQ(kit_.stats().writes_dropped.value(), 0U);
}

// ---- Removals ----

TEST_F(OutageTest, ARemovalMeanwhileStaysAndIsWrittenAtOnceAfterwards) {
  kit_.options.demote_idle = seconds(20);
  open();
  break_down();
  EXPECT_TRUE(kit_.remove(1));
  EXPECT_EQ(await_removals(), Code::kIo);
  mend();
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
  kit_.loop.run_for(Millis(5));
  start_again();
  EXPECT_EQ(kit_.get(1), 0U);
  EXPECT_EQ(kit_.get(2), 1U);
}

TEST_F(OutageTest, OneThatIsAskedForBehindTheOutageWaitsForThoseOfIt) {
  open();
  break_down();
  EXPECT_TRUE(kit_.remove(1));
  mend();
  EXPECT_EQ(await_removals(), Code::kOk);
  start_again();
  EXPECT_EQ(kit_.get(1), 0U);
}

// Written and answered, but not flushed: the reset takes it, and it is written again.
TEST_F(OutageTest, ARemovalThatTheResetLostIsWrittenAgain) {
  open();
  EXPECT_TRUE(kit_.remove(1));
  kit_.drive().stall(UINT64_MAX, Millis(3));  // the flush that follows the tombstone comes too late
  EXPECT_EQ(await_removals(), Code::kOk);
  kit_.drive().reset({.seed = 1, .keep_percent = 0});
  break_down();
  mend();
  kit_.loop.run_for(Millis(5));
  start_again();
  EXPECT_EQ(kit_.get(1), 0U);
}

TEST_F(OutageTest, AReplacementMeanwhileDoesNotBringTheOldOneBack) {
  open();
  break_down();
  EXPECT_TRUE(kit_.replace(1, 2));
  expect_gone_for_good(1);
}

TEST_F(OutageTest, AReplacementThatWaitedWhenItWentOffDoesNotBringTheOldOneBack) {
  open();
  EXPECT_TRUE(kit_.replace(1, 2));  // dirty
  break_down();
  expect_gone_for_good(1);
}

TEST_F(OutageTest, AReplacementMeanwhileIsOnFlashAfterwards) {
  open();
  break_down();
  EXPECT_TRUE(kit_.replace(1, 2));
  mend();
  kit_.settle();
  start_again();
  EXPECT_EQ(kit_.get(1), 2U);
}

TEST_F(OutageTest, ARecordPutAgainBehindItsRemovalIsNotEndedByIt) {
  open();
  break_down();
  EXPECT_TRUE(kit_.remove(1));
  EXPECT_TRUE(kit_.put(1, 2));
  mend();
  kit_.settle();
  EXPECT_EQ(kit_.get(1), 2U);
  start_again();
  EXPECT_EQ(kit_.get(1), 2U);
}

// Beyond the bound the segments are given up, and a removal is answered behind that.
TEST_F(OutageTest, MoreRemovalsThanMayWaitGiveTheirSegmentsUp) {
  kit_.options.removals_waiting_max = 10;
  open();
  break_down();
  for (std::uint64_t n = 0; n < kHeld - 1; ++n) EXPECT_TRUE(kit_.remove(n));
  const auto evicted = kit_.stats().segments_evicted.value();
  mend();
  for (std::uint64_t n = 0; n < kHeld - 1; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kNone);
  EXPECT_EQ(await_removals(), Code::kOk);
  EXPECT_GT(kit_.stats().segments_evicted.value(), evicted);
  start_again();
  for (std::uint64_t n = 0; n < kHeld - 1; ++n) EXPECT_EQ(kit_.get(n), 0U) << n;
}

TEST_F(OutageTest, RemovalsBeyondTheBoundHoldForWhateverTheMachineDoesOnceTheyAreAnswered) {
  for (int stop_after = 0; stop_after < 12; ++stop_after) {
    SCOPED_TRACE(stop_after);
    StoreKit kit;
    kit.options.removals_waiting_max = 0;
    ASSERT_TRUE(kit.open()) << kit.why;
    for (std::uint64_t n = 0; n < 20; ++n) ASSERT_TRUE(kit.put(n));
    ASSERT_TRUE(kit.reopen());
    kit.drive().fail_all(EIO);
    kit.passing = true;
    for (std::uint64_t n = 0; n < 8; ++n) kit.get(n);
    kit.loop.run_for(Millis(1));
    ASSERT_EQ(kit.stats().tier_off.value(), 1U);
    EXPECT_TRUE(kit.remove(12));
    EXPECT_TRUE(kit.put(12, 2));
    kit.drive().fail_all(0);
    ASSERT_TRUE(kit.loop.run_until([&] { return kit.stats().tier_off.value() == 0; }, minutes(1)));
    std::optional<Status> answer;
    kit.store->await_removals([&](Status s) { answer = s; });
    kit.loop.run_for(std::chrono::microseconds(700 * stop_after));
    const bool answered = answer.has_value() && answer->has_value();
    kit.kill();
    ASSERT_TRUE(kit.open()) << kit.why;
    if (answered) {
      EXPECT_NE(kit.get(12), 1U);
    }
    EXPECT_EQ(answered, answer.has_value());
  }
}

// ---- What was not flushed ----

TEST_F(OutageTest, WhatWasNotFlushedIsNotPromisedAndWhatWasSyncedStays) {
  open();
  ASSERT_TRUE(kit_.put(100, 1, AckLevel::kSynced));
  ASSERT_TRUE(kit_.put(101, 1, AckLevel::kWritten));  // the same segment
  break_down();
  kit_.drive().reset({.seed = 1, .keep_percent = 0});
  fill_pool();
  mend();
  EXPECT_EQ(kit_.get(100), 1U);
  EXPECT_EQ(await(100, AckLevel::kWritten), Code::kOk);
  EXPECT_EQ(kit_.lookup(101), Tier::kNone);
  EXPECT_EQ(await(101, AckLevel::kWritten), Code::kNotFound);
  EXPECT_EQ(kit_.stats().corrupt.value(), 0U);
  start_again(true);
  EXPECT_EQ(kit_.get(100), 1U);
  EXPECT_EQ(kit_.get(101), 0U);
}

TEST_F(OutageTest, WhatTheResetLostIsWrittenFromThePool) {
  open();
  ASSERT_TRUE(kit_.put(100, 1, AckLevel::kWritten));
  EXPECT_TRUE(on_flash(100));
  break_down();
  kit_.drive().reset({.seed = 1, .keep_percent = 0});
  mend();
  EXPECT_FALSE(on_flash(100));
  kit_.settle();
  EXPECT_TRUE(on_flash(100));
  start_again();
  EXPECT_EQ(kit_.get(100), 1U);
}

// What counts as lost may be there all the same: a removal names it.
TEST_F(OutageTest, ARemovalOfWhatCountsAsLostHolds) {
  open();
  ASSERT_TRUE(kit_.put(100, 1, AckLevel::kWritten));
  break_down();
  fill_pool();
  mend();  // no reset: nothing is lost
  EXPECT_EQ(kit_.lookup(100), Tier::kNone);
  kit_.remove(100);
  EXPECT_EQ(await_removals(), Code::kOk);
  start_again();
  EXPECT_EQ(kit_.get(100), 0U);
}

TEST_F(OutageTest, AnOlderCopyThatCountsAsLostDoesNotComeBackInsteadOfANewerOne) {
  open();
  ASSERT_TRUE(kit_.put(100, 1, AckLevel::kWritten));
  break_down();
  fill_pool();
  mend();
  ASSERT_TRUE(kit_.put(100, 2, AckLevel::kWritten));
  start_again();
  EXPECT_EQ(kit_.get(100), 2U);
}

TEST_F(OutageTest, TheResetOfASecondOutageTakesNothingThatWasFlushedInBetween) {
  open();
  break_down();
  mend();
  ASSERT_TRUE(kit_.put(100, 1, AckLevel::kSynced));
  ASSERT_TRUE(kit_.put(101, 1, AckLevel::kWritten));
  break_down();
  kit_.drive().reset({.seed = 1, .keep_percent = 0});
  fill_pool();
  mend();
  EXPECT_EQ(kit_.get(100), 1U);
  EXPECT_EQ(kit_.lookup(101), Tier::kNone);
}

// A rewrite for `synced` is lost with the reset: what it was to outdate is found at the next start, as it was synced.
TEST_F(OutageTest, WhatWasSyncedOutlivesARewriteThatTheResetLost) {
  open();
  ASSERT_TRUE(kit_.put(100, 1, AckLevel::kSynced));
  kit_.drive().inject(io::DiskOp::Kind::kSync, 1, io::SimFault::kError);
  EXPECT_FALSE(kit_.put(101, 1, AckLevel::kSynced));
  kit_.loop.run_for(Millis(50));
  std::optional<Code> code;
  kit_.store->await(kit_.ns, id_of(100), AckLevel::kSynced, [&](Status s) { code = s ? Code::kOk : s.error().code; });
  kit_.loop.run_for(std::chrono::microseconds(600));  // its frame is written, and is being flushed
  kit_.drive().reset({.seed = 1, .keep_percent = 0});
  break_down();
  EXPECT_EQ(code, Code::kIo);
  fill_pool();
  mend();
  EXPECT_EQ(await_removals(), Code::kOk);
  kit_.settle();
  start_again(true);
  EXPECT_EQ(kit_.get(100), 1U);
}

// ---- What is still on its way ----

// A frame that the device keeps: the tier stays off until it is answered. It lands, and is nobody's copy.
TEST_F(OutageTest, ItStaysOffWhileSomethingOfBeforeIsUnderWayAndThatIsNotTakenForItsRecord) {
  open();
  ASSERT_TRUE(kit_.put(99, 1, AckLevel::kSynced));
  kit_.loop.run_for(Millis(50));  // a segment is open, and nothing else is under way
  std::optional<Code> code;
  kit_.drive().stall(1, Duration::max());
  kit_.start_put(100, code);
  kit_.loop.run_for(minutes(10));
  EXPECT_EQ(kit_.stats().tier_off.value(), 1U);
  EXPECT_EQ(code, Code::kIo);
  EXPECT_EQ(kit_.log.count("stays off until the device has answered 1 operations"), 1U);
  kit_.drive().release();
  come_back();
  EXPECT_FALSE(on_flash(100));
  kit_.settle();
  EXPECT_TRUE(on_flash(100));
  EXPECT_EQ(await(100, AckLevel::kSynced), Code::kOk);
}

TEST_F(OutageTest, ARemovalNamesAFrameThatLandsLate) {
  for (const bool before : {true, false}) {
    SCOPED_TRACE(before);
    StoreKit kit;
    ASSERT_TRUE(kit.open()) << kit.why;
    ASSERT_TRUE(kit.put(99, 1, AckLevel::kSynced));
    kit.loop.run_for(Millis(50));
    std::optional<Code> code;
    kit.drive().stall(1, Duration::max());
    kit.start_put(100, code);
    ASSERT_TRUE(kit.loop.run_until([&] { return kit.stats().tier_off.value() == 1; }, minutes(1)));
    if (before) {
      EXPECT_TRUE(kit.remove(100));
    }
    kit.drive().release();
    ASSERT_TRUE(kit.loop.run_until([&] { return kit.stats().tier_off.value() == 0; }, minutes(1)));
    if (!before) {
      EXPECT_TRUE(kit.remove(100));
    }
    EXPECT_EQ(code, Code::kIo);
    kit.loop.run_for(Millis(100));
    kit.kill();
    ASSERT_TRUE(kit.open()) << kit.why;
    EXPECT_EQ(kit.get(100), 0U);
  }
}

// Segments that were being given up when it went off are given up afterwards, and the log goes round.
TEST_F(OutageTest, TheLogGoesRoundBehindIt) {
  open();
  std::uint64_t n = 10'000;
  for (int outage = 0; outage < 3; ++outage) {
    const auto evicted = kit_.stats().segments_evicted.value();
    while (kit_.stats().segments_evicted.value() < evicted + 3) ASSERT_TRUE(kit_.put(n++, 1, AckLevel::kWritten));
    kit_.drive().stall(1, Duration::max());  // of what giving up takes, or of a frame
    std::optional<Code> code;
    kit_.start_put(n++, code);
    ASSERT_TRUE(kit_.loop.run_until([&] { return kit_.stats().tier_off.value() == 1; }, minutes(2)));
    kit_.loop.run_for(seconds(3));
    kit_.drive().reset({.seed = 1, .keep_percent = 50});
    come_back();
    for (int i = 0; i < 300; ++i) ASSERT_TRUE(kit_.put(n++, 1, AckLevel::kSynced)) << i;
    EXPECT_EQ(kit_.get(n - 1), 1U);
  }
  start_again(true);
  EXPECT_EQ(kit_.get(n - 1), 1U);
}

// ---- The pool afterwards ----

TEST_F(OutageTest, WhatWasPutMeanwhileIsOnFlashAfterwards) {
  open();
  break_down();
  ASSERT_TRUE(kit_.put(100));
  mend();
  kit_.settle();
  start_again();
  EXPECT_EQ(kit_.get(100), 1U);
}

TEST_F(OutageTest, AnOrderlyEndRightBehindItWaitsForThat) {
  open();
  break_down();
  ASSERT_TRUE(kit_.put(100));
  mend();
  ASSERT_TRUE(kit_.reopen());
  EXPECT_EQ(kit_.get(100), 1U);
}

TEST_F(OutageTest, WhatWaitedWhenItWentOffIsWrittenAfterwards) {
  open();
  ASSERT_TRUE(kit_.put(100));
  break_down();
  mend();
  kit_.settle();
  start_again();
  EXPECT_EQ(kit_.get(100), 1U);
}

TEST_F(OutageTest, ACopyOnFlashIsTakenForTheSameRecordAgainAndNotWrittenTwice) {
  open();
  break_down();
  const auto before = kit_.stats().flash_bytes_written.value();
  ASSERT_TRUE(kit_.put(1));
  EXPECT_EQ(kit_.stats().puts_duplicate.value(), 0U);
  mend();
  kit_.settle();
  EXPECT_LT(kit_.stats().flash_bytes_written.value(), before + 36 * 1024) << "tombstones only";
  EXPECT_EQ(await(1, AckLevel::kSynced), Code::kOk);
  EXPECT_TRUE(kit_.remove(1));
  EXPECT_EQ(await_removals(), Code::kOk);
  start_again();
  EXPECT_EQ(kit_.get(1), 0U);
}

// Another version under its key, which the put could not see, is no copy of it: `synced` is said of what was put.
TEST_F(OutageTest, APutMeanwhileBuriesNothing) {
  open();
  break_down();
  ASSERT_TRUE(kit_.put(1, 2));
  ASSERT_TRUE(kit_.put(2, 2));
  mend();
  EXPECT_EQ(await(2, AckLevel::kWritten), Code::kOk) << "before the pool was walked";
  kit_.settle();
  EXPECT_EQ(kit_.get(1), 2U) << "the pool's";
  EXPECT_EQ(await(1, AckLevel::kSynced), Code::kOk);
  EXPECT_EQ(await(2, AckLevel::kSynced), Code::kOk);
  start_again(true);
  EXPECT_EQ(kit_.get(1), 2U);
  EXPECT_EQ(kit_.get(2), 2U);
  EXPECT_TRUE(kit_.remove(1));
  EXPECT_EQ(await_removals(), Code::kOk);
  start_again();
  EXPECT_EQ(kit_.get(1), 0U);
}

TEST_F(OutageTest, ARecordThatOnlyFlashHasSurvivesAPutOfItThatWasEvicted) {
  open();
  break_down();
  ASSERT_TRUE(kit_.put(1));
  fill_pool();
  mend();
  EXPECT_EQ(kit_.get(1), 1U);
  start_again();
  EXPECT_EQ(kit_.get(1), 1U);
}

TEST_F(OutageTest, WhatThePoolHoldsBesideIsNotWritten) {
  open();
  for (std::uint64_t n = 0; n < 5; ++n) EXPECT_EQ(kit_.get(n), 1U);  // in both
  break_down();
  const auto before = kit_.stats().flash_bytes_written.value();
  mend();
  kit_.settle();
  EXPECT_LT(kit_.stats().flash_bytes_written.value(), before + 36 * 1024) << "tombstones only";
}

// ---- When it does not come back ----

// Headers that a reset has taken were marked before they were written, and are read.
TEST_F(OutageTest, TheMapOfChangesHoldsOverAnOutage) {
  kit_.options.list_uses = true;
  open();
  const auto reads_of_a_start = [&] {
    const auto before = counters().reads;
    EXPECT_TRUE(kit_.reopen());
    return counters().reads - before;
  };
  const auto by_table = reads_of_a_start();
  break_down();
  mend();
  EXPECT_LT(reads_of_a_start(), by_table + 20) << "of 24 segments";
}

// Where it would have told of headers that a reset has taken.
TEST_F(OutageTest, AnOrderlyEndBehindAnOutageLeavesNoLastTable) {
  kit_.options.list_uses = true;
  const auto version_left = [&] {
    kit_.close();
    std::vector<std::byte> page(kPageBytes);
    kit_.drive().peek(kUseTableAt, page);
    return load<UseTableHead>(page.data()).version;
  };
  open();
  EXPECT_EQ(version_left(), kFormatVersion);
  open();
  break_down();
  mend();
  EXPECT_EQ(version_left(), kUseTableServing);
}

TEST_F(OutageTest, NoProbeBehindTheEndOfWriting) {
  kit_.options.list_uses = true;
  open();
  bool drained = false;
  kit_.store->drain(after(kit_.loop.now(), minutes(1)), [&] { drained = true; });
  ASSERT_TRUE(kit_.loop.run_until([&] { return drained; }, minutes(1)));
  const auto before = counters().writes;
  break_down();
  kit_.drive().fail_all(0);
  kit_.loop.run_for(minutes(5));
  EXPECT_EQ(counters().writes, before);
  EXPECT_EQ(kit_.stats().tier_off.value(), 1U);
}

TEST_F(OutageTest, OneThatWentOffWhileItWasReadStaysOffUntilTheNextStart) {
  open();
  kit_.close();
  kit_.options.recover_later = true;
  bool stalled = false;
  kit_.meanwhile = [&] {
    if (!std::exchange(stalled, true)) kit_.drive().stall(1, seconds(25));
  };
  ASSERT_TRUE(kit_.open()) << kit_.why;
  ASSERT_EQ(kit_.stats().tier_off.value(), 1U) << "nothing was read behind the first look";
  const auto before = counters().writes;
  ASSERT_TRUE(kit_.put(1, 2));
  kit_.loop.run_for(minutes(10));
  EXPECT_EQ(kit_.stats().tier_off.value(), 1U);
  EXPECT_EQ(counters().writes, before);
  kit_.meanwhile = nullptr;
  start_again();
  EXPECT_EQ(kit_.get(1), 1U);
}

}  // namespace
}  // namespace kvd::store
