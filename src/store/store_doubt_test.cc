// Tests of segments whose headers cannot be read at a start and can at the next, on simulated disks: what was removed
// or replaced meanwhile does not come back from there, and what nobody touched does.
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "store/format.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

using std::chrono::seconds;

class DoubtTest : public ::testing::Test {
 protected:
  // Of which the headers can be unreadable at once: two errors each, and with 16 the tier goes off.
  static constexpr std::uint32_t kUnreadable = 7;

  DoubtTest() { kit_.options.flash_bytes = kHeadBytes + 24 * kit_.options.segment_bytes; }
  void open() { ASSERT_TRUE(kit_.open()) << kit_.why; }
  // Fills the first segments; record `last_` lies in the last of these, which have lower numbers than all that are
  // free.
  void fill() {
    while (last_ == 0 || kit_.segment_of(last_) + 1 < kUnreadable) ASSERT_TRUE(kit_.put(++last_, 1, AckLevel::kSynced));
    old_ = kit_.segment_of(last_);
    ASSERT_EQ(old_ + 1, kUnreadable);
  }
  // The next start cannot read their headers; the one behind read_again() can.
  void start_unread() {
    kit_.kill();
    for (std::uint32_t s = 0; s < kUnreadable; ++s)
      kit_.drive().wear_out(io::DiskOp::Kind::kRead, kit_.segment_at(s), kPageBytes);
    open();
  }
  void start_readable() {
    kit_.kill();
    kit_.drive().mend();
    kit_.options.index_records_max = 0;
    open();
  }
  // Gives up segments while others are free: the index has room for a few records only.
  void give_up_segments(std::uint64_t count) {
    for (std::uint64_t n = 10'000; kit_.stats().segments_evicted.value() < count; ++n) {
      ASSERT_LT(n, 10'200u);
      ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
      kit_.loop.run_for(Millis(10));
    }
  }
  static Code code_of(const Status& status) { return status ? Code::kOk : status.error().code; }
  std::optional<Code> await_removals(Duration limit = Millis(100)) {
    answer_.reset();
    kit_.store->await_removals([this](const Status& status) { answer_ = code_of(status); });
    kit_.loop.run_until([this] { return answer_.has_value(); }, limit);
    return answer_;
  }
  std::uint64_t doubtful(std::size_t device = 0) {
    return kit_.store->device_figures()[device].stats->segments_doubtful.value();
  }

  StoreKit kit_;
  std::uint64_t last_ = 0;
  std::uint32_t old_ = 0;
  std::optional<Code> answer_;
};

TEST_F(DoubtTest, WhatNobodyTouchedIsBackAtTheNextStart) {
  open();
  fill();
  start_unread();
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
  EXPECT_EQ(kit_.lookup(last_), Tier::kNone);
  for (std::uint64_t n = 1'000; n < 1'020; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));
  EXPECT_EQ(await_removals(), Code::kOk) << "nothing was removed";
  start_readable();
  for (std::uint64_t n = 1; n <= last_; ++n) EXPECT_EQ(kit_.get(n), 1u) << n;
  for (std::uint64_t n = 1'000; n < 1'020; ++n) EXPECT_EQ(kit_.get(n), 1u) << n;
}

// More tombstones are spent than may be: a start gives segments up for these, but not before something else has ended
// the doubts.
TEST_F(DoubtTest, NothingIsGivenUpForTombstonesMeanwhile) {
  open();
  fill();
  for (std::uint64_t n = 2'000; n < 2'010; ++n) {
    ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));
    EXPECT_TRUE(kit_.remove(n));
    kit_.settle();
  }
  kit_.options.tombstones_spent_max = 2;
  start_unread();
  kit_.settle();
  EXPECT_EQ(doubtful(), kUnreadable);
  EXPECT_EQ(kit_.stats().segments_evicted.value(), 0U);
  EXPECT_FALSE(kit_.remove(last_));
  EXPECT_EQ(await_removals(), Code::kOk);
  kit_.settle();
  EXPECT_GT(kit_.stats().segments_evicted.value(), 0U);
  EXPECT_LE(kit_.stats().flash_tombstones.value(), 3U);
}

TEST_F(DoubtTest, WhatWasRemovedMeanwhileStaysRemoved) {
  open();
  fill();
  start_unread();
  EXPECT_FALSE(kit_.remove(last_)) << "it is not there";
  EXPECT_EQ(await_removals(), Code::kOk);
  start_readable();
  EXPECT_EQ(kit_.lookup(last_), Tier::kNone);
}

// The newer version goes with its segment, which alone told of it that the older one had been replaced.
TEST_F(DoubtTest, WhatWasReplacedMeanwhileDoesNotComeBackWhenItsSuccessorIsGivenUp) {
  open();
  fill();
  kit_.options.index_records_max = 6;
  start_unread();
  ASSERT_TRUE(kit_.replace(last_, 2, AckLevel::kSynced));
  give_up_segments(3);
  start_readable();
  EXPECT_EQ(kit_.lookup(last_), Tier::kNone);
}

// They may hold records of it: nobody has read them.
TEST_F(DoubtTest, ARemovalOfAGroupThatNobodyKnowsEndsThem) {
  open();
  fill();
  start_unread();
  EXPECT_FALSE(kit_.store->remove(kit_.ns, id_of(last_, 1)));
  EXPECT_EQ(await_removals(), Code::kOk);
  EXPECT_EQ(doubtful(), 0u);
}

// Neither does what was removed before, when the segment with its tombstone is given up.
TEST_F(DoubtTest, WhatWasRemovedBeforeDoesNotComeBackWhenItsTombstoneIsGivenUp) {
  open();
  fill();
  ASSERT_TRUE(kit_.reopen()) << kit_.why;  // the tombstone goes to another segment
  ASSERT_TRUE(kit_.remove(last_));
  ASSERT_EQ(await_removals(), Code::kOk);
  kit_.settle();
  kit_.options.index_records_max = 6;
  start_unread();
  give_up_segments(2);
  start_readable();
  EXPECT_EQ(kit_.lookup(last_), Tier::kNone);
}

// The answer comes behind a flush of the new headers.
TEST_F(DoubtTest, ARemovalThatWasAnsweredOutlivesALossOfPowerThatComesAtOnce) {
  open();
  fill();
  start_unread();
  kit_.remove(last_);
  ASSERT_EQ(await_removals(), Code::kOk);
  kit_.lose_power(1, 0);
  kit_.drive().mend();
  open();
  EXPECT_EQ(kit_.lookup(last_), Tier::kNone);
}

TEST_F(DoubtTest, ARemovalThatNobodyWaitedForIsDoneByAnOrderlyEnd) {
  open();
  fill();
  start_unread();
  kit_.remove(last_);
  kit_.close();
  kit_.drive().mend();
  open();
  EXPECT_EQ(kit_.lookup(last_), Tier::kNone);
}

TEST_F(DoubtTest, FiguresAndTheLogTellOfThem) {
  open();
  fill();
  start_unread();
  EXPECT_EQ(doubtful(), kUnreadable);
  EXPECT_EQ(kit_.log.count("the headers of 7 segments (the first is 0) cannot be read"), 1u);
  const std::uint64_t free = kit_.stats().segments_free.value();
  EXPECT_LE(free, 24 - kUnreadable);
  kit_.remove(0);
  ASSERT_EQ(await_removals(), Code::kOk);
  EXPECT_EQ(doubtful(), 0u);
  EXPECT_EQ(kit_.stats().segments_free.value(), free + kUnreadable);
}

// What reads and is no header of ours is no header at any start.
TEST_F(DoubtTest, ADamagedHeaderIsNotInDoubt) {
  open();
  fill();
  kit_.kill();
  for (std::uint32_t s = 0; s < kUnreadable; ++s) kit_.drive().flip_bit(kit_.segment_at(s) + 100, 3);
  open();
  EXPECT_EQ(doubtful(), 0u);
  EXPECT_EQ(kit_.log.count("cannot be read"), 0u);
}

// They are used before anything that can be read is given up, and after what is free.
TEST_F(DoubtTest, PutsTakeThemWhenNothingElseIsFree) {
  open();
  fill();
  start_unread();
  std::uint64_t n = 1'000;
  const auto put = [&] {
    ASSERT_TRUE(kit_.put(n++, 1, AckLevel::kWritten));
    kit_.loop.run_for(Millis(5));
  };
  while (kit_.stats().segments_free.value() > 2) put();
  EXPECT_EQ(doubtful(), kUnreadable);
  while (doubtful() == kUnreadable) put();
  kit_.loop.run_for(Millis(50));
  EXPECT_EQ(doubtful(), 0u) << "the first one that goes may have held what is newer than in the others";
  EXPECT_EQ(kit_.stats().segments_evicted.value(), 0u);
  while (kit_.stats().segments_evicted.value() == 0) put();
  EXPECT_GT(n, 1'000 + 5 * 20u);
}

// A place that cannot be written turns the tier off in the end, as where it was to be used: the answer says so.
TEST_F(DoubtTest, WhereOneCannotBeOverwrittenRemovalsAndReplacementsAreNotAcknowledged) {
  open();
  fill();
  start_unread();
  kit_.drive().wear_out(io::DiskOp::Kind::kWrite, kit_.segment_at(old_), kPageBytes);
  EXPECT_FALSE(kit_.remove(last_));
  EXPECT_EQ(await_removals(seconds(60)), Code::kIo);
  kit_.drive().mend();
  kit_.loop.run_for(seconds(10));  // it is back
  EXPECT_EQ(kit_.stats().tier_off.value(), 0u);
  EXPECT_EQ(await_removals(), Code::kOk);
  start_readable();
  EXPECT_EQ(kit_.lookup(last_), Tier::kNone);

  kit_.kill();
  kit_.drive().wear_out(io::DiskOp::Kind::kRead, kit_.segment_at(0), kPageBytes);
  open();
  kit_.drive().wear_out(io::DiskOp::Kind::kWrite, kit_.segment_at(0), kPageBytes);
  EXPECT_EQ(code_of(kit_.replace(1, 2, AckLevel::kSynced)), Code::kIo);
}

TEST_F(DoubtTest, APassingErrorOfAnOverwriteIsTriedAgain) {
  open();
  fill();
  start_unread();
  for (std::uint64_t nth = 1; nth <= 3; ++nth) kit_.drive().inject(io::DiskOp::Kind::kWrite, nth, io::SimFault::kError);
  kit_.remove(last_);
  EXPECT_FALSE(await_removals().has_value());
  kit_.loop.run_for(seconds(3));
  EXPECT_EQ(answer_, Code::kOk);
  start_readable();
  EXPECT_EQ(kit_.lookup(last_), Tier::kNone);
}

// That several fail together counts once.
TEST_F(DoubtTest, APassingErrorOfSeveralOverwritesTurnsNothingOff) {
  open();
  fill();
  start_unread();
  kit_.loop.run_for(std::chrono::minutes(5));  // the errors of the start count no more
  for (std::uint32_t s = 0; s < 4; ++s) kit_.drive().wear_out(io::DiskOp::Kind::kWrite, kit_.segment_at(s), kPageBytes);
  kit_.remove(last_);
  EXPECT_FALSE(await_removals(Millis(2'500)).has_value());
  EXPECT_GE(kit_.log.count("could not be prepared; trying again"), 12u);
  kit_.drive().mend();
  kit_.loop.run_for(seconds(3));
  EXPECT_EQ(answer_, Code::kOk);
  EXPECT_EQ(kit_.stats().tier_outages.value(), 0u);
}

// Segments behind the new end go with the file only when nothing can be found there.
TEST_F(DoubtTest, AStoreWithThemCanBeMadeSmaller) {
  open();
  fill();
  start_unread();
  kit_.kill();
  kit_.options.flash_bytes = kHeadBytes + 5 * kit_.options.segment_bytes;
  open();
  EXPECT_EQ(kit_.log.count("shrinking from 24 to 5 segments"), 1u);
  for (std::uint64_t n = 1'000; n < 1'020; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  kit_.options.flash_bytes = kHeadBytes + 24 * kit_.options.segment_bytes;
  start_readable();
  for (std::uint64_t n = 1; n <= last_; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kNone) << n;
}

// ---- Of several devices ----

class DoubtDevicesTest : public DoubtTest {
 protected:
  DoubtDevicesTest() { kit_.add_device(24); }
  // A record of the second device, none of whose headers that are written can be read at the next start.
  void start_unread_second(Duration hold = Duration::zero()) {
    open();
    for (std::uint64_t n = 1; n <= 16; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));
    kit_.kill();
    last_ = 1;
    while (last_ <= 16 && !kit_.find_on_drive(last_, 1, 0, 1)) ++last_;
    ASSERT_LE(last_, 16u);
    for (std::uint32_t s = 0; s < 5; ++s) {
      kit_.drive(1).wear_out(io::DiskOp::Kind::kRead, kit_.segment_at(s), kPageBytes);
      if (hold == Duration::zero()) continue;
      kit_.drive(1).hold_back(kit_.segment_at(s), kPageBytes, hold);
      kit_.options.index_records_max = 4;  // all else is given up
    }
    open();
    ASSERT_EQ(doubtful(0), 0u);
    ASSERT_EQ(doubtful(1), 5u);
    ASSERT_EQ(kit_.lookup(last_), Tier::kNone);
  }
  // Other records take the place in the pool of all that was put before.
  void let_go() {
    for (std::uint64_t n = 1'000; n < 1'080; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  }
  std::optional<Code> await(std::uint64_t number, AckLevel level, Duration limit = Millis(100)) {
    const auto told = std::make_shared<std::optional<Code>>();
    kit_.store->await(kit_.ns, id_of(number), level, [told](const Status& status) { *told = code_of(status); });
    kit_.loop.run_until([&] { return told->has_value(); }, limit);
    return *told;
  }
  void start_both() {
    kit_.kill();
    for (std::size_t device : {0u, 1u}) kit_.drive(device).mend();
    open();
  }
};

TEST_F(DoubtDevicesTest, ARemovalEndsThoseOfAllDevices) {
  start_unread_second();
  kit_.remove(last_);
  EXPECT_EQ(await_removals(), Code::kOk);
  EXPECT_EQ(doubtful(1), 0u);
  start_both();
  EXPECT_EQ(kit_.lookup(last_), Tier::kNone);
}

TEST_F(DoubtDevicesTest, WhereTheirDeviceIsOffARemovalSaysSo) {
  start_unread_second();
  kit_.drive(1).stall(UINT64_MAX, Duration::max());
  kit_.remove(last_);
  EXPECT_EQ(await_removals(seconds(60)), Code::kIo);
  EXPECT_EQ(kit_.store->device_figures()[1].stats->off.value(), 1u);
  EXPECT_EQ(code_of(kit_.replace(last_, 2, AckLevel::kWritten)), Code::kIo);
  kit_.drive(1).release();
  kit_.loop.run_for(seconds(20));
  EXPECT_EQ(await_removals(), Code::kOk) << "it is back";
  EXPECT_EQ(doubtful(1), 0u);
}

// Wherever the image is by then. What replaced nothing is as safe as ever.
TEST_F(DoubtDevicesTest, AReplacementThatThePoolHasLetGoIsAcknowledgedBehindThem) {
  start_unread_second();
  for (std::uint32_t s = 0; s < 5; ++s) kit_.drive(1).hold_back(kit_.segment_at(s), kPageBytes, seconds(2));
  ASSERT_TRUE(kit_.replace(last_, 2));
  let_go();
  ASSERT_EQ(kit_.lookup(last_), Tier::kFlash);
  ASSERT_EQ(kit_.lookup(1'000), Tier::kFlash);
  for (const AckLevel level : {AckLevel::kWritten, AckLevel::kSynced}) {
    ASSERT_GT(doubtful(1), 0u);
    EXPECT_EQ(await(1'000, level, Millis(50)), Code::kOk);
    EXPECT_EQ(await(last_, level, Millis(50)), std::nullopt);
  }
  kit_.loop.run_until([&] { return doubtful(1) == 0; }, seconds(20));
  EXPECT_EQ(await(last_, AckLevel::kWritten, Millis(50)), Code::kOk);
}

TEST_F(DoubtDevicesTest, WhereTheirDeviceIsOffAReplacementThatThePoolHasLetGoIsNotAcknowledged) {
  start_unread_second();
  kit_.drive(1).stall(UINT64_MAX, Duration::max());
  EXPECT_EQ(code_of(kit_.replace(last_, 2, AckLevel::kWritten)), Code::kIo);
  kit_.loop.run_for(seconds(60));
  let_go();
  ASSERT_EQ(kit_.lookup(last_), Tier::kFlash);
  ASSERT_EQ(kit_.lookup(1'000), Tier::kFlash);
  EXPECT_EQ(await(1'000, AckLevel::kWritten), Code::kOk);
  EXPECT_EQ(await(last_, AckLevel::kWritten), Code::kIo);
  EXPECT_EQ(await(last_, AckLevel::kSynced), Code::kIo);
}

TEST_F(DoubtDevicesTest, SoBesideADeviceThatWasNotRead) {
  start_unread_second();
  kit_.kill();
  for (std::size_t device : {0u, 1u}) kit_.drive(device).mend();
  for (std::uint32_t s = 1; s < 24; ++s)
    kit_.drive(1).wear_out(io::DiskOp::Kind::kRead, kit_.segment_at(s), kPageBytes);
  open();
  ASSERT_EQ(kit_.store->device_figures()[1].stats->off.value(), 1u);
  EXPECT_EQ(code_of(kit_.replace(last_, 2, AckLevel::kWritten)), Code::kIo);
  let_go();
  ASSERT_EQ(kit_.lookup(last_), Tier::kFlash);
  ASSERT_EQ(kit_.lookup(1'000), Tier::kFlash);
  EXPECT_EQ(await(1'000, AckLevel::kWritten), Code::kOk);
  EXPECT_EQ(await(last_, AckLevel::kWritten), Code::kIo);
}

// What lies on the first device may be all that tells of an older copy on the second.
TEST_F(DoubtDevicesTest, WhatIsGivenUpWaitsForThoseOfOtherDevices) {
  start_unread_second(Millis(400));
  ASSERT_GT(kit_.stats().segments_evicted.value(), 0u);
  const auto headers = [&] {
    std::vector<std::byte> pages(2 * kPageBytes);
    for (std::uint32_t s = 0; s < 2; ++s)
      kit_.drive(0).peek(kit_.segment_at(s), MutableBytes(pages).subspan(s * kPageBytes, kPageBytes));
    return pages;
  };
  const auto before = headers();
  for (; doubtful(1) > 0; kit_.loop.run_for(Millis(1))) ASSERT_EQ(headers(), before);
  kit_.loop.run_for(Millis(100));
  EXPECT_NE(headers(), before);
}

}  // namespace
}  // namespace kvd::store
