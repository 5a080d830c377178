// Tests of the flash tier on a simulated disk: gets that pass, frames and the order of acknowledgements, failed writes
// and flushes, eviction.
#include <algorithm>
#include <array>
#include <optional>

#include <gtest/gtest.h>

#include "store/format.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

class FlashTest : public ::testing::Test {
 protected:
  void open() { ASSERT_TRUE(kit_.open()) << kit_.why; }
  // Puts records until `segments` more segments have been given up.
  void churn(std::uint64_t segments) {
    const auto until = kit_.stats().segments_evicted.value() + segments;
    while (kit_.stats().segments_evicted.value() < until) {
      const Status put = kit_.put(next_++, 1, AckLevel::kWritten);
      ASSERT_TRUE(put || put.error().code == Code::kBusy);
      kit_.loop.run_for(Millis(2));
    }
    kit_.loop.run_for(Millis(20));
  }
  // So many that all segments but that of record `keep` have been given up.
  void turn_over(std::uint64_t keep) {
    const auto until = kit_.stats().segments_evicted.value() + 12;
    while (kit_.stats().segments_evicted.value() < until) {
      EXPECT_EQ(kit_.get(keep), 1u);
      ASSERT_TRUE(kit_.put(next_++, 1, AckLevel::kWritten));
    }
  }
  // The record is written and not flushed, and its segment is closed.
  void put_unsafe(std::uint64_t number) {
    kit_.loop.run_for(Millis(20));
    kit_.drive().inject(io::DiskOp::Kind::kSync, 1, io::SimFault::kError);
    EXPECT_EQ(kit_.put(number, 1, AckLevel::kSynced).error().code, Code::kIo);
    kit_.loop.run_for(Millis(20));
  }
  void remove(std::uint64_t number) {
    EXPECT_TRUE(kit_.remove(number));
    ASSERT_EQ(kit_.await_removals(Millis(100)), Code::kOk);
  }

  StoreKit kit_;
  std::uint64_t next_ = 10'000;
};

// Memory for open segments is taken at the start: where footers are slow the next segment waits for one of them.
TEST_F(FlashTest, SegmentsThatWaitForTheirFootersAreBounded) {
  kit_.options.pool_bytes = 4 << 20;
  open();
  const std::uint64_t segment = kit_.options.segment_bytes;
  const std::uint64_t end = kit_.options.flash_bytes;
  for (std::uint64_t at = end; at > end - 8 * segment; at -= segment)
    kit_.drive().hold_back(at - 2 * kPageBytes, 2 * kPageBytes, Millis(500));
  const auto before = kit_.stats().flash_bytes_written.value();
  std::array<std::optional<Code>, 40> acks;
  for (auto& ack : acks) kit_.start_put(next_++, ack);
  kit_.loop.run_for(Millis(200));
  EXPECT_EQ(std::ranges::count(acks, std::optional(Code::kOk)), 24) << "six fill a segment";
  EXPECT_LE(kit_.stats().flash_bytes_written.value() - before, 4 * segment);
  ASSERT_TRUE(kit_.loop.run_until([&] { return std::ranges::all_of(acks, [](auto& a) { return a.has_value(); }); },
                                  Millis(1000)));
  EXPECT_EQ(std::ranges::count(acks, std::optional(Code::kOk)), 40);
}

// A sweep over the index, in slices, for each segment that is given up; records are written between two slices, and in
// a full index that moves entries. One that escaped would count as written again once its segment has a new generation.
TEST(SweepTest, NothingOfASegmentWithoutFooterEscapesWhileOthersAreWritten) {
  StoreKit kit(1, {.latency_min = {}, .latency_max = {}, .sync_latency = {}});  // all of it in one moment
  kit.name_space = namespace_of(1, 4'000);
  kit.options.index_records_max = 150;
  kit.options.index_sweep_buckets = 1;
  ASSERT_TRUE(kit.open()) << kit.why;
  const std::uint64_t segment = kit.options.segment_bytes;
  const std::uint64_t end = kit.options.flash_bytes;
  for (std::uint64_t at = end; at > end - 8 * segment; at -= segment)
    kit.drive().wear_out(io::DiskOp::Kind::kRead, at - kPageBytes, kPageBytes);
  constexpr std::uint64_t kRounds = 100;
  std::array<std::optional<Code>, 32> acks;
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    acks.fill({});
    for (std::uint64_t i = 0; i < acks.size(); ++i) {  // one a turn of the loop: frames come between slices
      kit.start_put(round * acks.size() + i, acks[i]);
      kit.loop.run_once(Duration::zero());
    }
    kit.loop.run_for(std::chrono::seconds(2));  // so few errors leave the device on
    ASSERT_EQ(std::ranges::count(acks, std::optional(Code::kOk)), std::ssize(acks));
    if (round % 10 != 0) continue;
    for (std::uint64_t n = acks.size(); n < (round + 1) * acks.size(); ++n)
      if (kit.lookup(n) == Tier::kFlash) {
        ASSERT_EQ(kit.get(n), 1U) << "record " << n << " of round " << round;
      }
  }
  EXPECT_GT(kit.stats().segments_evicted.value(), 50U);
  EXPECT_EQ(kit.stats().corrupt.value(), 0U);
  EXPECT_EQ(kit.stats().flash_records.value(), kit.store->device_figures().front().stats->records.value());
}

// ---- Discards ----

class DiscardTest : public ::testing::Test {
 protected:
  explicit DiscardTest(const io::SimDiskModel& model = {.discards = true}) : kit_(1, model) {}
  // Puts records until `segments` more segments have been given up.
  void churn(std::uint64_t segments) {
    const auto until = kit_.stats().segments_evicted.value() + segments;
    for (int n = 0; kit_.stats().segments_evicted.value() < until && n < 1'000; ++n) {
      ASSERT_TRUE(kit_.put(next_++, 1, AckLevel::kWritten));
      kit_.loop.run_for(Millis(2));
    }
    ASSERT_GE(kit_.stats().segments_evicted.value(), until);
    kit_.loop.run_for(Millis(200));
  }
  [[nodiscard]] std::uint64_t discards() { return kit_.drive().counters().discards; }

  StoreKit kit_;
  std::uint64_t next_ = 10'000;
};

TEST_F(DiscardTest, WhatIsGivenUpIsDiscardedAndWrittenAgain) {
  ASSERT_TRUE(kit_.open()) << kit_.why;
  churn(12);
  EXPECT_EQ(discards(), kit_.stats().segments_evicted.value());
  EXPECT_EQ(kit_.stats().flash_bytes_discarded.value(), discards() * (kit_.options.segment_bytes - kPageBytes));
  ASSERT_TRUE(kit_.reopen());
  EXPECT_EQ(kit_.get(next_ - 1), 1U);
  EXPECT_GT(kit_.stats().recovered_records.value(), 20U);
}

TEST_F(DiscardTest, ADeviceThatFailsAtItIsNotAskedAgain) {
  ASSERT_TRUE(kit_.open()) << kit_.why;
  kit_.drive().inject(io::DiskOp::Kind::kDiscard, 2, io::SimFault::kError, EOPNOTSUPP);
  churn(12);
  EXPECT_EQ(discards(), 2U);
  EXPECT_EQ(kit_.stats().io_errors.value(), 0U);
  EXPECT_EQ(kit_.stats().tier_off.value(), 0U);
  EXPECT_EQ(kit_.stats().flash_bytes_discarded.value(), kit_.options.segment_bytes - kPageBytes);
}

// Discards take longer than it takes to fill a segment, and a small index has more segments given up than writing
// needs: several wait for their turn.
class SlowDiscardTest : public DiscardTest {
 protected:
  SlowDiscardTest() : DiscardTest({.discard_latency = std::chrono::seconds(1), .discards = true}) {}
};

TEST_F(SlowDiscardTest, WhatWaitsBehindADiscardThatFailsIsUsedAgain) {
  kit_.options.index_records_max = 20;
  ASSERT_TRUE(kit_.open()) << kit_.why;
  kit_.drive().inject(io::DiskOp::Kind::kDiscard, 3, io::SimFault::kError, EIO);
  churn(10);
  EXPECT_EQ(discards(), 3U);
  // One record again and again leaves the index room, so that only writing gives segments up: as many as it has ready.
  const std::uint64_t before = kit_.stats().segments_evicted.value();
  for (std::uint64_t n = 0; n < 100; ++n) {
    ASSERT_TRUE(kit_.replace(1, 1 + n % 8));
    kit_.loop.run_for(std::chrono::seconds(5));
  }
  EXPECT_GE(kit_.stats().segments_evicted.value(), before + 10);
  EXPECT_EQ(kit_.stats().tier_off.value(), 0U);
}

TEST_F(FlashTest, AFileIsNotDiscarded) {
  open();
  churn(3);
  EXPECT_EQ(kit_.drive().counters().discards, 0U);
}

// ---- Gets whose records pass ----

// A record whose layers pass takes no more of the pool than they need, and leaves nothing behind.
TEST_F(FlashTest, WhatPassesIsNotKept) {
  open();
  for (std::uint64_t n = 0; n < 10; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  ASSERT_TRUE(kit_.reopen());
  kit_.passing = true;
  for (std::uint64_t n = 0; n < 10; ++n) {
    EXPECT_EQ(kit_.get(n), 1U);
    EXPECT_EQ(kit_.get(n, 1, 2), 1U);
    EXPECT_EQ(kit_.get(n, 3, 1), 1U);
    EXPECT_EQ(kit_.lookup(n), Tier::kFlash);
  }
  EXPECT_EQ(kit_.stats().pool_bytes_used.value(), 0U);
  EXPECT_EQ(kit_.stats().flash_hits.value(), 30U);
  kit_.passing = false;
  EXPECT_EQ(kit_.get(4), 1U);
  EXPECT_EQ(kit_.lookup(4), Tier::kPool);
  const std::uint64_t used = kit_.stats().pool_bytes_used.value();
  kit_.passing = true;  // from the pool: a copy
  EXPECT_EQ(kit_.get(4, 2, 2), 1U);
  EXPECT_EQ(kit_.stats().pool_bytes_used.value(), used);
}

// Gets that end before their bytes come: the buffer stays until the device has answered, then it is free.
TEST_F(FlashTest, APassingGetThatIsCancelledOrLateLeavesNothing) {
  open();
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kWritten));
  ASSERT_TRUE(kit_.reopen());
  const auto foreign = foreign_of(1);
  for (const bool cancel : {true, false}) {
    kit_.drive().stall(1, Millis(50));
    std::optional<Code> code;
    Get get;
    get.ns = kit_.ns;
    get.id = id_of(1);
    get.foreign = foreign;
    get.layer_first = 1;
    get.layer_count = 2;
    get.passing = true;
    if (!cancel) get.deadline = after(kit_.loop.now(), Millis(5));
    get.on_done = [&](const Result<RecordView>& view) { code = view ? Code::kOk : view.error().code; };
    kit_.store->start_get(get);
    kit_.loop.run_for(Millis(10));
    if (cancel) kit_.store->cancel(get);
    EXPECT_EQ(code, cancel ? Code::kCancelled : Code::kTimeout);
    EXPECT_GT(kit_.stats().pool_bytes_used.value(), 0U);
    kit_.loop.run_for(Millis(100));
    EXPECT_EQ(kit_.stats().pool_bytes_used.value(), 0U);
  }
  EXPECT_EQ(kit_.get(1), 1U);
}

// ---- Frames ----

TEST_F(FlashTest, AFrameCountsOnlyAfterThoseBeforeIt) {
  kit_.options.segment_bytes = 1 << 20;  // two large frames in one segment
  kit_.options.flash_bytes = (4 << 20) + (8 << 20);
  kit_.options.pool_bytes = 4 << 20;
  kit_.name_space = namespace_of(4, 64 << 10);
  open();
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kSynced));  // opens a segment
  kit_.drive().stall(1, Millis(300));
  std::optional<Code> first, second;
  const auto start = [&](std::uint64_t n, std::optional<Code>& code) {
    kit_.start_put(n, code);
    kit_.loop.run_for(std::chrono::microseconds(1));
  };
  start(1, first);
  start(2, second);
  kit_.loop.run_for(Millis(200));
  EXPECT_EQ(kit_.drive().unflushed(), 1u) << "the second frame has been written";
  EXPECT_FALSE(second.has_value()) << "but a scan would not reach it";
  kit_.loop.run_for(Millis(200));
  EXPECT_EQ(first, Code::kOk);
  EXPECT_EQ(second, Code::kOk);
}

TEST_F(FlashTest, AFailedFrameAndThoseAfterItAreWrittenElsewhere) {
  open();
  kit_.drive().inject(io::DiskOp::Kind::kWrite, 1, io::SimFault::kError);
  std::optional<Code> codes[3];
  for (std::uint64_t n = 0; n < 3; ++n) {
    kit_.start_put(n, codes[n]);
    kit_.loop.run_for(std::chrono::microseconds(1));
  }
  kit_.loop.run_for(Millis(100));
  for (const auto& code : codes) EXPECT_EQ(code, Code::kOk);
  EXPECT_EQ(kit_.stats().io_errors.value(), 1u);
  kit_.kill();
  open();
  for (std::uint64_t n = 0; n < 3; ++n) EXPECT_EQ(kit_.get(n), 1u);
}

// The failed write may have reached the medium in part, even with its descriptors; many disks, so that it has not on
// some.
TEST(FlashFrames, AFrameAfterAFailedOneIsAcknowledgedOnlyWhereAScanFindsIt) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    StoreKit kit(seed);
    kit.options.segment_bytes = 1 << 20;
    kit.options.flash_bytes = (4 << 20) + (8 << 20);
    kit.options.pool_bytes = 4 << 20;
    kit.name_space = namespace_of(4, 64 << 10);
    ASSERT_TRUE(kit.open()) << kit.why;
    ASSERT_TRUE(kit.put(0, 1, AckLevel::kSynced));
    kit.drive().inject(io::DiskOp::Kind::kWrite, 1, io::SimFault::kError);
    std::optional<Code> first, second;
    kit.start_put(1, first);
    kit.loop.run_for(std::chrono::microseconds(1));
    kit.start_put(2, second);
    ASSERT_TRUE(kit.loop.run_until([&] { return second.has_value(); }, std::chrono::seconds(5)));
    EXPECT_EQ(second, Code::kOk);
    kit.disks.kill({.seed = seed, .keep_percent = 0});
    kit.store.reset();
    ASSERT_TRUE(kit.open()) << kit.why;
    EXPECT_EQ(kit.get(2), 1u) << "seed " << seed;
  }
}

// A drive with a volatile cache keeps what it likes of what was not flushed. A put of a record that an opening has
// found stores nothing, so what it found must be there.
TEST(FlashFrames, AFooterThatOutlivesAPowerLossListsOnlyWhatOutlivedItToo) {
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(seed);
    StoreKit kit(seed);
    ASSERT_TRUE(kit.open()) << kit.why;
    const std::uint64_t records = 5 + seed % 3;  // the last of them does not fit into the first segment, or is close
    for (std::uint64_t n = 0; n < records; ++n) ASSERT_TRUE(kit.put(n, 1, AckLevel::kWritten));
    kit.loop.run_for(std::chrono::microseconds(200));
    kit.lose_power(seed, 90);
    ASSERT_TRUE(kit.open()) << kit.why;
    for (std::uint64_t n = 0; n < records; ++n) {
      EXPECT_TRUE(kit.put(n, 1, AckLevel::kSynced));
      EXPECT_EQ(kit.get(n), 1U) << n;
    }
  }
}

// Neither the segment behind it nor a drain waits for a footer whose flush has failed.
TEST_F(FlashTest, ASegmentWhoseFlushFailsGoesWithoutAFooter) {
  open();
  for (std::uint64_t i = 1; i <= 3; ++i) kit_.drive().inject(io::DiskOp::Kind::kSync, i, io::SimFault::kError);
  for (std::uint64_t n = 0; n < 12; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  bool drained = false;
  kit_.store->drain(after(kit_.loop.now(), std::chrono::seconds(20)), [&] { drained = true; });
  ASSERT_TRUE(kit_.loop.run_until([&] { return drained; }, std::chrono::seconds(5)));
  kit_.kill();
  open();
  EXPECT_GT(kit_.log.count("(1 without footer"), 0U);
  for (std::uint64_t n = 0; n < 12; ++n) EXPECT_EQ(kit_.get(n), 1U) << "a scan finds them";
}

// The device says that a frame failed, but has it, and the footer that would leave it out is not written: what was
// removed meanwhile stays removed.
TEST_F(FlashTest, ARecordOfAFailedFrameThatIsOnTheDiskStaysRemoved) {
  for (const bool rewritten : {false, true}) {
    SCOPED_TRACE(rewritten);
    StoreKit kit;
    ASSERT_TRUE(kit.open()) << kit.why;
    ASSERT_TRUE(kit.put(0, 1, AckLevel::kSynced));
    kit.loop.run_for(Millis(20));
    kit.drive().inject(io::DiskOp::Kind::kWrite, 1, io::SimFault::kErrorDone);
    kit.drive().inject(io::DiskOp::Kind::kWrite, 2, io::SimFault::kLose);  // the footer of the segment
    std::optional<Code> code;
    kit.start_put(1, code);
    ASSERT_TRUE(kit.loop.run_until([&] { return kit.stats().io_errors.value() == 1; }, Millis(100)));
    if (rewritten) {
      ASSERT_TRUE(kit.loop.run_until([&] { return code.has_value(); }, Millis(100)));
      EXPECT_EQ(code, Code::kOk);
    }
    EXPECT_TRUE(kit.remove(1));
    ASSERT_EQ(kit.await_removals(Millis(100)), Code::kOk);
    kit.kill();
    ASSERT_TRUE(kit.open()) << kit.why;
    EXPECT_EQ(kit.lookup(1), Tier::kNone);
    EXPECT_EQ(kit.get(0), 1u);
  }
}

TEST_F(FlashTest, APutThatCannotBeWrittenTwiceSaysSoAndStaysInDram) {
  open();
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kSynced));
  // Its frame, and after the next header the frame that repeats it; the closed segment's footer waits for a flush.
  for (const std::uint64_t nth : {1u, 3u}) kit_.drive().inject(io::DiskOp::Kind::kWrite, nth, io::SimFault::kError);
  std::optional<Code> code;
  kit_.start_put(1, code);
  kit_.loop.run_for(Millis(100));
  EXPECT_EQ(code, Code::kIo);
  EXPECT_EQ(kit_.stats().io_errors.value(), 2u);
  EXPECT_EQ(kit_.get(1), 1u);
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kWritten)) << "asked again, it is written";
}

TEST_F(FlashTest, AFullDiskLosesNothingThatIsInThePool) {
  open();
  for (std::uint64_t i = 1; i <= 400; ++i)
    kit_.drive().inject(io::DiskOp::Kind::kWrite, i, io::SimFault::kError, ENOSPC);
  std::optional<Code> codes[5];
  for (std::uint64_t n = 0; n < 5; ++n) kit_.start_put(n, codes[n]);
  kit_.loop.run_for(std::chrono::minutes(1));
  for (std::uint64_t n = 0; n < 5; ++n) {
    EXPECT_EQ(codes[n], Code::kIo);
    EXPECT_EQ(kit_.get(n), 1u);
  }
}

// The device reports a lost write once. What it may have lost is written again before it counts as durable.
TEST_F(FlashTest, AfterAFailedFlushSyncedMeansWrittenAgain) {
  open();
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kSynced));  // a segment is open, and the next ones are ready
  kit_.loop.run_for(Millis(20));
  kit_.drive().inject(io::DiskOp::Kind::kSync, 1, io::SimFault::kError);
  EXPECT_EQ(kit_.put(1, 1, AckLevel::kSynced).error().code, Code::kIo);
  const auto before = kit_.drive().counters().bytes_written;
  EXPECT_TRUE(kit_.put(1, 1, AckLevel::kWritten)) << "it is on its way: SIGKILL loses nothing";
  EXPECT_LT(kit_.drive().counters().bytes_written, before + 36 * 1024);
  EXPECT_TRUE(kit_.put(1, 1, AckLevel::kSynced));
  EXPECT_GE(kit_.drive().counters().bytes_written, before + 36 * 1024);
  const auto twice = kit_.drive().counters().bytes_written;
  EXPECT_TRUE(kit_.put(1, 1, AckLevel::kSynced));
  EXPECT_EQ(kit_.drive().counters().bytes_written, twice) << "once is enough";
  EXPECT_EQ(kit_.get(1), 1u);
  EXPECT_TRUE(kit_.remove(1));
  kit_.loop.run_for(Millis(100));
  kit_.kill();
  open();
  EXPECT_EQ(kit_.lookup(1), Tier::kNone) << "neither copy comes back";
}

// ---- Rewrites ----

TEST_F(FlashTest, ARewriteThatFailsKeepsTheCopyThatWasAcknowledged) {
  open();
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kSynced));
  put_unsafe(1);
  EXPECT_TRUE(kit_.put(1, 1, AckLevel::kWritten));
  for (std::uint64_t segment = 0; segment < 8; ++segment)  // every frame fails, headers do not
    kit_.drive().wear_out(io::DiskOp::Kind::kWrite, kHeadBytes + segment * kit_.options.segment_bytes + kPageBytes,
                          kit_.options.segment_bytes - 2 * kPageBytes);
  EXPECT_EQ(kit_.put(1, 1, AckLevel::kSynced).error().code, Code::kIo);
  EXPECT_EQ(kit_.stats().io_errors.value(), 3u) << "of the flush, of the frame, of the frame that repeats it";
  kit_.drive().mend();
  const auto before = kit_.drive().counters().bytes_written;
  EXPECT_TRUE(kit_.put(1, 1, AckLevel::kWritten));
  EXPECT_EQ(kit_.drive().counters().bytes_written, before) << "it has been all the time";
  kit_.loop.run_for(Millis(100));
  kit_.kill();
  open();
  EXPECT_EQ(kit_.get(1), 1u);
}

// The segment with the copy that was acknowledged is given up, and so is the one with the tombstones. That in which a
// scan would find the frame that failed stays.
TEST_F(FlashTest, ARemovalNamesARewriteThatFailedAndIsOnTheMedium) {
  open();
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kSynced));
  put_unsafe(1);
  ASSERT_TRUE(kit_.put(2, 1, AckLevel::kWritten));
  kit_.loop.run_for(Millis(20));
  kit_.drive().inject(io::DiskOp::Kind::kWrite, 1, io::SimFault::kErrorDone);  // behind record 2
  kit_.drive().inject(io::DiskOp::Kind::kWrite, 3, io::SimFault::kError);      // behind the next header
  kit_.drive().inject(io::DiskOp::Kind::kWrite, 4, io::SimFault::kLose);       // the footer
  EXPECT_EQ(kit_.put(1, 1, AckLevel::kSynced).error().code, Code::kIo);
  EXPECT_EQ(kit_.stats().io_errors.value(), 3u);
  kit_.loop.run_for(Millis(20));
  remove(1);
  turn_over(2);
  kit_.kill();
  open();
  EXPECT_EQ(kit_.get(2), 1u) << "its segment is still there";
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
}

// The same where it succeeds: the first copy, in the segment that stays, is ended by the second and by the removal.
TEST_F(FlashTest, WhatARewriteOutdatesStaysRemovedWithIt) {
  open();
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kSynced));
  put_unsafe(1);
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kSynced));
  remove(1);
  turn_over(0);
  kit_.kill();
  open();
  EXPECT_EQ(kit_.get(0), 1u) << "its segment is still there";
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
}

// It may lie beside the second attempt, which succeeds, and outlive that: nobody has removed it, but what was put and
// acknowledged behind it is newer.
TEST_F(FlashTest, ARewriteThatFailedDoesNotComeBackBehindLaterPuts) {
  open();
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kSynced));
  put_unsafe(1);
  ASSERT_TRUE(kit_.put(2, 1, AckLevel::kWritten));
  kit_.loop.run_for(Millis(20));
  kit_.drive().inject(io::DiskOp::Kind::kWrite, 1, io::SimFault::kErrorDone);  // behind record 2
  kit_.drive().inject(io::DiskOp::Kind::kWrite, 4, io::SimFault::kLose);       // the footer
  EXPECT_TRUE(kit_.put(1, 1, AckLevel::kSynced));
  turn_over(2);
  ASSERT_EQ(kit_.lookup(1), Tier::kNone);
  EXPECT_TRUE(kit_.put(1, 2, AckLevel::kSynced));
  turn_over(2);
  kit_.kill();
  open();
  EXPECT_EQ(kit_.get(2), 1u) << "its segment is still there";
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
}

// ---- Eviction ----

TEST_F(FlashTest, GivesUpTheSegmentsThatWereNotUsed) {
  open();
  for (std::uint64_t n = 0; n < 6; ++n) ASSERT_TRUE(kit_.put(n));  // fills the first segment
  kit_.settle();
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(kit_.put(100 + static_cast<std::uint64_t>(i), 1, AckLevel::kWritten));
    for (std::uint64_t n = 0; n < 5; ++n) EXPECT_EQ(kit_.get(n), 1u);
  }
  EXPECT_GT(kit_.stats().segments_evicted.value(), 3u);
  ASSERT_TRUE(kit_.reopen());
  for (std::uint64_t n = 0; n < 5; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kFlash) << "used all the time";
  EXPECT_EQ(kit_.lookup(100), Tier::kNone);
}

TEST_F(FlashTest, UnderFifoTheSegmentWrittenFirstGoesHoweverItIsUsed) {
  kit_.options.eviction = policy::Eviction::kFifo;
  open();
  std::uint64_t written = 0;
  while (kit_.stats().segments_evicted.value() == 0) {
    ASSERT_LT(written, 100U);
    ASSERT_TRUE(kit_.put(written++, 1, AckLevel::kWritten));
    EXPECT_EQ(kit_.get(0), 1u);
  }
  ASSERT_TRUE(kit_.reopen());
  EXPECT_EQ(kit_.lookup(0), Tier::kNone) << "used all the time";
  EXPECT_EQ(kit_.lookup(written / 2), Tier::kFlash);
  // Across a restart, too.
  for (std::uint64_t n = 0; n < written; ++n) {
    ASSERT_TRUE(kit_.put(1000 + n, 1, AckLevel::kWritten));
    kit_.get(written / 2);
  }
  ASSERT_TRUE(kit_.reopen());
  EXPECT_EQ(kit_.lookup(written / 2), Tier::kNone);
}

TEST_F(FlashTest, AFullIndexGivesUpSegmentsAndNeverFails) {
  kit_.options.index_records_max = 12;
  open();
  for (std::uint64_t n = 0; n < 100; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  EXPECT_LE(kit_.stats().flash_records.value(), 20u);
  EXPECT_GT(kit_.stats().segments_evicted.value(), 10u);
  EXPECT_EQ(kit_.get(99), 1u);
}

TEST_F(FlashTest, ASegmentThatIsReadStaysUntilTheReadsAreOver) {
  open();
  for (std::uint64_t n = 0; n < 40; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  ASSERT_TRUE(kit_.reopen());
  std::uint64_t oldest = 0;
  while (kit_.lookup(oldest) == Tier::kNone) ++oldest;
  const auto foreign = foreign_of(oldest);
  Get get;
  get.ns = kit_.ns;
  get.id = id_of(oldest);
  get.foreign = foreign;
  std::optional<Code> code;
  get.on_done = [&](Result<RecordView> view) {
    code = view ? Code::kOk : view.error().code;
    EXPECT_TRUE(view && slab_is({view->first_slab, 5'000}, oldest, 1, 0));
  };
  kit_.drive().stall(1, Millis(400));
  kit_.store->start_get(get);
  kit_.loop.run_for(Millis(1));
  for (std::uint64_t n = 100; n < 160; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  EXPECT_FALSE(code.has_value()) << "the read is still out";
  kit_.loop.run_for(std::chrono::seconds(1));
  EXPECT_EQ(code, Code::kOk);
  EXPECT_EQ(kit_.stats().corrupt.value(), 0u);
}

TEST_F(FlashTest, RecordsOfAGivenUpSegmentStayInThePoolUnwritten) {
  open();
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kWritten));
  Pin pin = kit_.store->pin_for_lease(kit_.ns, id_of(1), UINT64_MAX).pin;
  churn(8);
  EXPECT_EQ(kit_.lookup(1), Tier::kPool);
  const auto written = kit_.stats().flash_bytes_written.value();
  kit_.loop.run_for(std::chrono::seconds(60));
  EXPECT_EQ(kit_.stats().flash_bytes_written.value(), written) << "write amplification stays 1";
  kit_.store->unpin_lease(std::move(pin));
}

TEST_F(FlashTest, AnUnreadableFooterStillLetsItsSegmentGo) {
  open();
  churn(1);
  for (int i = 0; i < 20; ++i)
    kit_.drive().inject(io::DiskOp::Kind::kRead, 1 + static_cast<std::uint64_t>(i), io::SimFault::kFlipBit);
  churn(4);
  EXPECT_LE(kit_.stats().flash_records.value(), 8u * 6u) << "no entry of a segment that is gone";
  EXPECT_EQ(kit_.stats().corrupt.value(), 0u);
}

}  // namespace
}  // namespace kvd::store
