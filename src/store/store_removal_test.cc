// Tests of removals on a simulated disk: they stay, whatever is written, given up, lost or killed meanwhile.
#include <algorithm>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "store/format.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

class RemovalTest : public ::testing::Test {
 protected:
  void open() { ASSERT_TRUE(kit_.open()) << kit_.why; }

  StoreKit kit_;
};

TEST_F(RemovalTest, ARemovedRecordStaysRemovedAfterAKill) {
  open();
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kSynced));
  EXPECT_TRUE(kit_.remove(1));
  EXPECT_FALSE(kit_.remove(1));
  kit_.loop.run_for(Millis(100));
  EXPECT_EQ(kit_.stats().tombstones.value(), 1u);
  kit_.lose_power(1, 0);
  open();
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
  ASSERT_TRUE(kit_.put(1, 2, AckLevel::kWritten)) << "a later put wins over the removal";
  kit_.kill();
  open();
  EXPECT_EQ(kit_.get(1), 2u);
}

TEST_F(RemovalTest, AnAwaitedRemovalSurvivesAKillThatComesAtOnce) {
  open();
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kSynced));
  EXPECT_TRUE(kit_.remove(1));
  EXPECT_EQ(kit_.await_removals(Millis(10)), Code::kOk) << "does not wait for an idle store";
  EXPECT_EQ(kit_.stats().tombstones.value(), 1u);
  EXPECT_EQ(kit_.await_removals(Millis(10)), Code::kOk) << "nothing is left to write";
  EXPECT_EQ(kit_.stats().tombstones.value(), 1u);
  kit_.kill();
  open();
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
}

TEST_F(RemovalTest, RemovalsThatWaitShareAFrame) {
  open();
  for (std::uint64_t n = 0; n < 5; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));
  const auto writes = kit_.drive().counters().writes;
  int acknowledged = 0;
  for (std::uint64_t n = 0; n < 5; ++n) {
    EXPECT_TRUE(kit_.remove(n));
    kit_.store->await_removals([&](Status status) { acknowledged += status ? 1 : 0; });
  }
  EXPECT_TRUE(kit_.loop.run_until([&] { return acknowledged == 5; }, Millis(10)));
  EXPECT_LE(kit_.drive().counters().writes - writes, 2u);
}

// Its frame, or the flush behind it, stays with the device for ever.
TEST_F(RemovalTest, WhoWaitsForADeviceThatHangsIsTold) {
  open();
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kSynced));
  std::optional<Code> in_frame, in_flush;
  kit_.start_put(1, in_flush, AckLevel::kSynced);
  kit_.loop.run_for(std::chrono::microseconds(10));
  kit_.drive().stall(UINT64_MAX, Duration::max());  // the frame is on its way, its flush is not
  kit_.loop.run_for(Millis(1));
  kit_.start_put(2, in_frame);
  kit_.loop.run_for(std::chrono::seconds(25));
  EXPECT_EQ(in_flush, Code::kIo);
  EXPECT_EQ(in_frame, Code::kIo);
  EXPECT_EQ(kit_.get(1), 1u);
  EXPECT_EQ(kit_.get(2), 1u) << "from the pool";
  kit_.kill();
}

TEST_F(RemovalTest, ARemovalThatCannotBeWrittenSaysSo) {
  open();
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kSynced));
  std::optional<Code> code;
  const auto await = [&] {
    kit_.store->await_removals([&](Status status) { code = status ? Code::kOk : status.error().code; });
  };
  kit_.drive().stall(UINT64_MAX, Duration::max());
  EXPECT_TRUE(kit_.remove(1));
  await();
  kit_.loop.run_for(std::chrono::seconds(25));
  EXPECT_EQ(code, Code::kIo);
  code.reset();
  await();
  EXPECT_EQ(code, Code::kIo) << "what flash holds may come back while the tier is off";
  kit_.kill();
}

// The flush that makes carried tombstones durable fails once, and the device has lost them without saying so again.
// Only when they are written again and flushed the new header may end their old copies.
TEST_F(RemovalTest, CarriedTombstonesOfAFailedFlushAreWrittenAgainBeforeTheHeader) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    StoreKit kit(seed);
    ASSERT_TRUE(kit.open()) << kit.why;
    for (std::uint64_t n = 0; n < 6; ++n) ASSERT_TRUE(kit.put(n, 1, AckLevel::kSynced));  // the first segment
    ASSERT_TRUE(kit.put(100, 1, AckLevel::kSynced));                                      // the second one
    EXPECT_TRUE(kit.remove(0));
    kit.loop.run_for(Millis(100));  // its tombstone lies there, too
    ASSERT_EQ(kit.stats().tombstones.value(), 1u);
    for (std::uint64_t n = 101; kit.stats().segments_evicted.value() == 0; ++n) {
      EXPECT_EQ(kit.get(1), 1u);  // the first segment stays
      ASSERT_TRUE(kit.put(n, 1, AckLevel::kWritten));
    }
    kit.drive().inject(io::DiskOp::Kind::kSync, 1, io::SimFault::kForget);
    kit.drive().inject(io::DiskOp::Kind::kSync, 2, io::SimFault::kForget);
    const auto header = [&] {  // of these two, in whichever order they were opened
      std::vector<std::byte> pages(2 * kPageBytes);
      kit.drive().peek(kHeadBytes, MutableBytes(pages).first(kPageBytes));
      kit.drive().peek(kHeadBytes + kit.options.segment_bytes, MutableBytes(pages).last(kPageBytes));
      return pages;
    };
    const auto old = header();
    for (int i = 0; header() == old && i < 200'000; ++i) kit.loop.run_for(std::chrono::microseconds(20));
    ASSERT_FALSE(header() == old);
    EXPECT_GE(kit.stats().tombstones.value(), 3u);
    kit.lose_power(seed, 50);
    ASSERT_TRUE(kit.open()) << kit.why;
    EXPECT_EQ(kit.lookup(1), Tier::kFlash);
    EXPECT_EQ(kit.lookup(0), Tier::kNone) << "removed";
  }
}

TEST_F(RemovalTest, ARemovalOutlivesAFlushThatLostIt) {
  open();
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kSynced));
  kit_.loop.run_for(Millis(100));
  kit_.drive().inject(io::DiskOp::Kind::kSync, 1, io::SimFault::kForget);
  EXPECT_TRUE(kit_.remove(1));
  kit_.loop.run_for(Millis(300));
  EXPECT_EQ(kit_.stats().tombstones.value(), 2u) << "written again, once";
  kit_.lose_power(1, 0);
  open();
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
}

TEST_F(RemovalTest, ATombstoneOutlivesTheSegmentThatHoldsIt) {
  kit_.options.flash_bytes = (4 << 20) + 16 * kit_.options.segment_bytes;
  open();
  // Segment A holds record 1 and stays, because others of it are used; the tombstone lies in a later segment.
  for (std::uint64_t n = 0; n < 6; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  std::uint64_t next = 10'000;
  const auto churn_and_use = [&](std::uint64_t segments) {
    const auto until = kit_.stats().segments_evicted.value() + segments;
    while (kit_.stats().segments_evicted.value() < until) {
      for (std::uint64_t n = 2; n < 6; ++n) EXPECT_EQ(kit_.get(n), 1u);
      ASSERT_TRUE(kit_.put(next++, 1, AckLevel::kWritten));
    }
  };
  churn_and_use(2);
  ASSERT_NE(kit_.lookup(1), Tier::kNone);
  EXPECT_TRUE(kit_.remove(1));
  kit_.loop.run_for(Millis(100));
  ASSERT_EQ(kit_.stats().tombstones.value(), 1u);
  churn_and_use(24);
  EXPECT_GE(kit_.stats().tombstones.value(), 2u) << "it was written again";
  kit_.kill();
  open();
  EXPECT_EQ(kit_.lookup(2), Tier::kFlash) << "the segment of the removed record lives";
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
}

TEST_F(RemovalTest, ARemovalDuringEvictionHoldsThoughTheEvictionWasNotDurable) {
  open();
  for (std::uint64_t n = 0; n < 5; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));  // the first segment
  std::optional<Code> code;
  for (std::uint64_t n = 100; kit_.stats().segments_evicted.value() == 0; ++n) {
    code.reset();
    kit_.start_put(n, code);
    while (!code && kit_.stats().segments_evicted.value() == 0) kit_.loop.run_for(std::chrono::microseconds(20));
  }
  // Its footer is being read; the next operation is the header that ends it, and that never completes.
  kit_.drive().stall(1, Duration::max());
  kit_.loop.run_for(Millis(5));
  for (std::uint64_t n = 0; n < 4; ++n) kit_.remove(n);
  for (std::uint64_t n = 1'000; n < 1'100; ++n) kit_.remove(n);  // were never there: nothing can come back
  kit_.loop.run_for(Millis(500));
  EXPECT_EQ(kit_.stats().tombstones.value(), 4u);
  kit_.disks.kill({.seed = 1, .keep_percent = 0});
  kit_.store.reset();
  kit_.options.flash_bytes += 8 * kit_.options.segment_bytes;  // so that opening need not give it up again
  open();
  EXPECT_EQ(kit_.lookup(4), Tier::kFlash) << "the segment is whole again";
  for (std::uint64_t n = 0; n < 4; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kNone) << n;
}

// Also where nobody knows what the segment holds, because its footer cannot be read.
TEST_F(RemovalTest, ARemovalThatIsRepeatedDuringEvictionIsWrittenOnce) {
  for (const bool readable : {true, false}) {
    SCOPED_TRACE(readable);
    StoreKit kit;
    ASSERT_TRUE(kit.open()) << kit.why;
    for (std::uint64_t n = 0; n < 5; ++n) ASSERT_TRUE(kit.put(n, 1, AckLevel::kSynced));  // the first segment
    if (!readable) kit.drive().inject(io::DiskOp::Kind::kRead, 1, io::SimFault::kError);
    std::optional<Code> code;
    for (std::uint64_t n = 100; kit.stats().segments_evicted.value() == 0; ++n) {
      code.reset();
      kit.start_put(n, code);
      while (!code && kit.stats().segments_evicted.value() == 0) kit.loop.run_for(std::chrono::microseconds(20));
    }
    kit.drive().stall(1, Duration::max());  // the header that ends it
    kit.loop.run_for(Millis(5));
    for (int i = 0; i < 100; ++i) {
      for (std::uint64_t n = 0; n < 4; ++n) kit.remove(n);
      for (std::uint64_t n = 1'000; n < 1'010; ++n) kit.remove(n);
    }
    kit.loop.run_for(Millis(500));
    EXPECT_EQ(kit.stats().tombstones.value(), readable ? 4U : 14U);
    kit.disks.kill({.seed = 1});
  }
}

// It has no more records than pages: removals beyond that many are answered when its new header is durable, and then
// they hold.
TEST_F(RemovalTest, RemovalsDuringAnEvictionOfUnknownContentAreBounded) {
  open();
  for (std::uint64_t n = 0; n < 5; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));  // the first segment
  kit_.drive().inject(io::DiskOp::Kind::kRead, 1, io::SimFault::kError);                 // its footer
  std::optional<Code> put, code;
  for (std::uint64_t n = 100; kit_.stats().segments_evicted.value() == 0; ++n) {
    put.reset();
    kit_.start_put(n, put);
    while (!put && kit_.stats().segments_evicted.value() == 0) kit_.loop.run_for(std::chrono::microseconds(20));
  }
  kit_.drive().stall(1, Millis(400));  // the header that ends it
  kit_.loop.run_for(Millis(5));
  const auto await = [&] {
    code.reset();
    kit_.store->await_removals([&](Status status) { code = status ? Code::kOk : status.error().code; });
    kit_.loop.run_for(Millis(50));
    return code;
  };
  const std::uint64_t pages = kit_.options.segment_bytes / kPageBytes;
  for (std::uint64_t n = 1'000; n < 1'000 + pages; ++n) kit_.remove(n);
  EXPECT_EQ(await(), Code::kOk);
  for (std::uint64_t n = 2'000; n < 3'000; ++n) kit_.remove(n);
  for (std::uint64_t n = 0; n < 4; ++n) kit_.remove(n);
  EXPECT_FALSE(await().has_value());
  EXPECT_EQ(kit_.stats().tombstones.value(), pages);
  EXPECT_TRUE(kit_.loop.run_until([&] { return code.has_value(); }, std::chrono::seconds(2)));
  EXPECT_EQ(code, Code::kOk);
  EXPECT_EQ(kit_.stats().tombstones.value(), pages);
  kit_.kill();
  open();
  for (std::uint64_t n = 0; n < 4; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kNone) << n;
}

// Its footer cannot be read and its header cannot be written, while other segments come and go.
TEST_F(RemovalTest, NoRemovalHangsOnASegmentThatIsWornOut) {
  kit_.options.flash_bytes = kHeadBytes + 24 * kit_.options.segment_bytes;
  kit_.options.index_records_max = 12;
  open();
  for (std::uint64_t n = 0; n < 5; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));  // of one segment
  const std::uint64_t segment = kit_.segment_at(kit_.segment_of(0));
  kit_.drive().wear_out(io::DiskOp::Kind::kRead, segment + kPageBytes, kit_.options.segment_bytes - kPageBytes);
  kit_.drive().wear_out(io::DiskOp::Kind::kWrite, segment, kPageBytes);
  std::uint64_t next = 100;
  const auto put = [&] {
    static_cast<void>(kit_.put(next++, 1, AckLevel::kWritten));
    kit_.loop.run_for(Millis(100));
  };
  while (kit_.stats().segments_evicted.value() == 0) put();
  const std::uint64_t pages = kit_.options.segment_bytes / kPageBytes;
  for (std::uint64_t n = 100'000; n <= 100'000 + pages; ++n) kit_.remove(n);
  std::optional<Code> code;
  kit_.store->await_removals([&](Status status) { code = status ? Code::kOk : status.error().code; });
  const Time begin = kit_.loop.now();
  while (!code && kit_.loop.now() < after(begin, std::chrono::minutes(2))) put();
  EXPECT_EQ(code, Code::kIo);
  EXPECT_GE(kit_.loop.now() - begin, std::chrono::seconds(3)) << "it is tried again first";
  EXPECT_GT(kit_.stats().segments_evicted.value(), 3U) << "others were given up meanwhile";
  kit_.kill();
}

TEST_F(RemovalTest, ARecordRemovedWhileItIsWrittenStaysRemoved) {
  open();
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kSynced));
  std::optional<Code> code;
  kit_.drive().stall(1, Millis(50));
  kit_.start_put(1, code);
  kit_.loop.run_for(Millis(10));
  EXPECT_TRUE(kit_.remove(1));
  kit_.loop.run_for(Millis(500));
  EXPECT_EQ(code, Code::kCancelled);
  kit_.kill();
  open();
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
}

// ---- How many tombstones lie on flash ----

// A store that never fills up would keep each for ever, and each start would read all of them into memory.
TEST_F(RemovalTest, SpentTombstonesOnFlashAreBounded) {
  constexpr std::size_t kMax = 40;
  kit_.options.tombstones_spent_max = kMax;
  kit_.options.flash_bytes = 16 << 20;
  open();
  std::uint64_t most = 0;
  for (std::uint64_t n = 0; n < 300; ++n) {
    ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced)) << n;
    EXPECT_TRUE(kit_.remove(n));
    kit_.settle();
    most = std::max(most, kit_.stats().flash_tombstones.value());
  }
  EXPECT_GT(kit_.stats().segments_free.value(), 16U) << "segments did not go for want of room";
  EXPECT_GT(most, kMax) << "it has come to that";
  EXPECT_LE(most, kMax + kMax / 4) << "and those in the open segment";
  EXPECT_EQ(kit_.log.count("nothing needs more than 40 any more"), 1U);
  kit_.kill();
  open();
  EXPECT_LE(kit_.stats().recovered_tombstones.value(), kMax + kMax / 4);
  for (std::uint64_t n = 0; n < 300; ++n) ASSERT_EQ(kit_.lookup(n), Tier::kNone) << n;
}

// The store had no bound when it wrote them.
TEST_F(RemovalTest, TooManySpentTombstonesOnFlashGoBehindTheStart) {
  kit_.options.flash_bytes = 16 << 20;
  open();
  for (std::uint64_t n = 0; n < 100; ++n) {
    ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced)) << n;
    EXPECT_TRUE(kit_.remove(n));
    kit_.settle();
  }
  EXPECT_EQ(kit_.stats().segments_evicted.value(), 0U);
  kit_.options.tombstones_spent_max = 20;
  kit_.kill();
  open();
  EXPECT_EQ(kit_.stats().recovered_tombstones.value(), 100U);
  kit_.settle();
  EXPECT_LE(kit_.stats().flash_tombstones.value(), 20U);
  kit_.kill();
  open();
  EXPECT_LE(kit_.stats().recovered_tombstones.value(), 20U);
  for (std::uint64_t n = 0; n < 100; ++n) ASSERT_EQ(kit_.lookup(n), Tier::kNone) << n;
}

// They are needed: what they name is on flash for as long as its segment. So nothing goes for them, but a segment takes
// only a part of the bound: all of what is open comes to a start behind a kill.
TEST_F(RemovalTest, ASegmentTakesAPartOfTheTombstonesThatMayBeSpent) {
  constexpr std::uint64_t kRemoved = 60, kParts = 4;
  kit_.options.tombstones_spent_max = 40;
  kit_.options.flash_bytes = 16 << 20;
  open();
  for (std::uint64_t n = 0; n < 2 * kRemoved; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced)) << n;
  kit_.settle();
  const std::uint64_t free_before = kit_.stats().segments_free.value();
  for (std::uint64_t n = 0; n < kRemoved; ++n) {
    EXPECT_TRUE(kit_.remove(2 * n));  // of segments that hold others
    kit_.settle();
  }
  EXPECT_GE(free_before - kit_.stats().segments_free.value(), kRemoved * kParts / 40 - 1);
  EXPECT_EQ(kit_.stats().segments_evicted.value(), 0U);
  for (std::uint64_t n = 0; n < kRemoved; ++n) ASSERT_EQ(kit_.get(2 * n + 1), 1U) << n;
}

// It would open a segment anew while the store ends, or keep it from listing its uses.
TEST_F(RemovalTest, AStoreThatEndsGivesNothingUpForTombstones) {
  kit_.options.flash_bytes = 16 << 20;
  kit_.options.tombstones_spent_max = 40;
  open();
  for (std::uint64_t n = 0; kit_.stats().flash_tombstones.value() < 44; ++n) {
    ASSERT_LT(n, 100U);
    ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced)) << n;
    EXPECT_TRUE(kit_.remove(n));
    kit_.settle();
  }
  ASSERT_EQ(kit_.stats().segments_evicted.value(), 0U);
  bool drained = false;
  kit_.store->drain(after(kit_.loop.now(), std::chrono::seconds(10)), [&] { drained = true; });
  EXPECT_TRUE(kit_.loop.run_until([&] { return drained; }, std::chrono::seconds(20)));
  EXPECT_EQ(kit_.stats().segments_evicted.value(), 0U);
}

}  // namespace
}  // namespace kvd::store
