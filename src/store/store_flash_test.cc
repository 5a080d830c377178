// Tests of the flash tier on a simulated disk: order of acknowledgements, eviction, removals that stay, errors,
// breaker, growing and shrinking.
#include <optional>

#include <gtest/gtest.h>

#include "block/checksum.h"
#include "store/format.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

// Starts a put whose acknowledgement goes into `code`, which must outlive it.
void start_put(StoreKit& kit, std::uint64_t n, std::optional<Code>& code, AckLevel level = AckLevel::kWritten) {
  const GroupSchema& schema = *kit.store->schema(kit.ns, 0);
  auto put = kit.store->begin_put(kit.ns, id_of(n), foreign_of(n));
  ASSERT_TRUE(put && *put);
  std::vector<std::uint64_t> checksums;
  for (std::uint16_t layer = 0; layer < schema.layers; ++layer) {
    fill_slab(put->slab(layer), n, 1, layer);
    checksums.push_back(block::slab_checksum(put->seed(), layer, put->slab(layer)));
  }
  kit.store->complete_put(std::move(*put), checksums, level,
                          [&code](Status status) { code = status ? Code::kOk : status.error().code; });
}

class FlashTest : public ::testing::Test {
 protected:
  void open() { ASSERT_TRUE(kit_.open()) << kit_.why; }
  void start_put(std::uint64_t n, std::optional<Code>& code) { store::start_put(kit_, n, code); }
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

  StoreKit kit_;
  std::uint64_t next_ = 10'000;
};

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
    start_put(n, code);
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
    start_put(n, codes[n]);
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
    start_put(kit, 1, first);
    kit.loop.run_for(std::chrono::microseconds(1));
    start_put(kit, 2, second);
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
    store::start_put(kit, 1, code);
    ASSERT_TRUE(kit.loop.run_until([&] { return kit.stats().io_errors.value() == 1; }, Millis(100)));
    if (rewritten) {
      ASSERT_TRUE(kit.loop.run_until([&] { return code.has_value(); }, Millis(100)));
      EXPECT_EQ(code, Code::kOk);
    }
    EXPECT_TRUE(kit.remove(1));
    std::optional<Code> removal;
    kit.store->await_removals([&](Status status) { removal = status ? Code::kOk : status.error().code; });
    ASSERT_TRUE(kit.loop.run_until([&] { return removal.has_value(); }, Millis(100)));
    EXPECT_EQ(removal, Code::kOk);
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
  start_put(1, code);
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
  for (std::uint64_t n = 0; n < 5; ++n) start_put(n, codes[n]);
  kit_.loop.run_for(std::chrono::minutes(1));
  for (std::uint64_t n = 0; n < 5; ++n) {
    EXPECT_EQ(codes[n], Code::kIo);
    EXPECT_EQ(kit_.get(n), 1u);
  }
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
  Pin pin = kit_.store->pin_for_lease(kit_.ns, id_of(1));
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

// ---- Removal ----

TEST_F(FlashTest, ARemovedRecordStaysRemovedAfterAKill) {
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

TEST_F(FlashTest, AnAwaitedRemovalSurvivesAKillThatComesAtOnce) {
  open();
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kSynced));
  EXPECT_TRUE(kit_.remove(1));
  std::optional<Code> code;
  const auto await = [&] {
    code.reset();
    kit_.store->await_removals([&](Status status) { code = status ? Code::kOk : status.error().code; });
    return kit_.loop.run_until([&] { return code.has_value(); }, Millis(10));  // does not wait for an idle store
  };
  EXPECT_TRUE(await());
  EXPECT_EQ(code, Code::kOk);
  EXPECT_EQ(kit_.stats().tombstones.value(), 1u);
  EXPECT_TRUE(await()) << "nothing is left to write";
  EXPECT_EQ(kit_.stats().tombstones.value(), 1u);
  kit_.kill();
  open();
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
}

TEST_F(FlashTest, RemovalsThatWaitShareAFrame) {
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
TEST_F(FlashTest, WhoWaitsForADeviceThatHangsIsTold) {
  open();
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kSynced));
  std::optional<Code> in_frame, in_flush;
  store::start_put(kit_, 1, in_flush, AckLevel::kSynced);
  kit_.loop.run_for(std::chrono::microseconds(10));
  kit_.drive().stall(UINT64_MAX, Duration::max());  // the frame is on its way, its flush is not
  kit_.loop.run_for(Millis(1));
  store::start_put(kit_, 2, in_frame);
  kit_.loop.run_for(std::chrono::seconds(25));
  EXPECT_EQ(in_flush, Code::kIo);
  EXPECT_EQ(in_frame, Code::kIo);
  EXPECT_EQ(kit_.get(1), 1u);
  EXPECT_EQ(kit_.get(2), 1u) << "from the pool";
  kit_.kill();
}

TEST_F(FlashTest, ARemovalThatCannotBeWrittenSaysSo) {
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
TEST_F(FlashTest, CarriedTombstonesOfAFailedFlushAreWrittenAgainBeforeTheHeader) {
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

TEST_F(FlashTest, ARemovalOutlivesAFlushThatLostIt) {
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

TEST_F(FlashTest, ATombstoneOutlivesTheSegmentThatHoldsIt) {
  kit_.options.flash_bytes = (4 << 20) + 16 * kit_.options.segment_bytes;
  open();
  // Segment A holds record 1 and stays, because others of it are used; the tombstone lies in a later segment.
  for (std::uint64_t n = 0; n < 6; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  const auto churn_and_use = [&](std::uint64_t segments) {
    const auto until = kit_.stats().segments_evicted.value() + segments;
    while (kit_.stats().segments_evicted.value() < until) {
      for (std::uint64_t n = 2; n < 6; ++n) EXPECT_EQ(kit_.get(n), 1u);
      ASSERT_TRUE(kit_.put(next_++, 1, AckLevel::kWritten));
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

TEST_F(FlashTest, ARemovalDuringEvictionHoldsThoughTheEvictionWasNotDurable) {
  open();
  for (std::uint64_t n = 0; n < 5; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));  // the first segment
  std::optional<Code> code;
  for (std::uint64_t n = 100; kit_.stats().segments_evicted.value() == 0; ++n) {
    code.reset();
    start_put(n, code);
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
TEST_F(FlashTest, ARemovalThatIsRepeatedDuringEvictionIsWrittenOnce) {
  for (const bool readable : {true, false}) {
    SCOPED_TRACE(readable);
    StoreKit kit;
    ASSERT_TRUE(kit.open()) << kit.why;
    for (std::uint64_t n = 0; n < 5; ++n) ASSERT_TRUE(kit.put(n, 1, AckLevel::kSynced));  // the first segment
    if (!readable) kit.drive().inject(io::DiskOp::Kind::kRead, 1, io::SimFault::kError);
    std::optional<Code> code;
    for (std::uint64_t n = 100; kit.stats().segments_evicted.value() == 0; ++n) {
      code.reset();
      store::start_put(kit, n, code);
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
TEST_F(FlashTest, RemovalsDuringAnEvictionOfUnknownContentAreBounded) {
  open();
  for (std::uint64_t n = 0; n < 5; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));  // the first segment
  kit_.drive().inject(io::DiskOp::Kind::kRead, 1, io::SimFault::kError);                 // its footer
  std::optional<Code> put, code;
  for (std::uint64_t n = 100; kit_.stats().segments_evicted.value() == 0; ++n) {
    put.reset();
    start_put(n, put);
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

TEST_F(FlashTest, ARecordRemovedWhileItIsWrittenStaysRemoved) {
  open();
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kSynced));
  std::optional<Code> code;
  kit_.drive().stall(1, Millis(50));
  start_put(1, code);
  kit_.loop.run_for(Millis(10));
  EXPECT_TRUE(kit_.remove(1));
  kit_.loop.run_for(Millis(500));
  EXPECT_EQ(code, Code::kCancelled);
  kit_.kill();
  open();
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
}

// ---- Damage ----

TEST_F(FlashTest, ATransientReadErrorIsReadAgain) {
  open();
  ASSERT_TRUE(kit_.put(1));
  ASSERT_TRUE(kit_.put(2));
  ASSERT_TRUE(kit_.reopen());
  kit_.drive().inject(io::DiskOp::Kind::kRead, 1, io::SimFault::kFlipBit);
  EXPECT_EQ(kit_.get(1), 1u);
  kit_.drive().inject(io::DiskOp::Kind::kRead, 1, io::SimFault::kError);
  EXPECT_EQ(kit_.get(2), 1u);
  EXPECT_EQ(kit_.stats().corrupt.value(), 0u);
}

TEST_F(FlashTest, ADamagedRecordIsDroppedForGoodAndCanBePutAgain) {
  open();
  ASSERT_TRUE(kit_.put(1));
  ASSERT_TRUE(kit_.reopen());
  // The record's slabs are the only pages with these bytes.
  std::vector<std::byte> slab(5'000), found(5'000);
  fill_slab(slab, 1, 1, 2);
  std::uint64_t at = 4 << 20;
  for (;; at += kPageBytes) {
    ASSERT_LT(at, kit_.drive().size());
    kit_.drive().peek(at, found);
    if (found == slab) break;
  }
  kit_.drive().flip_bit(at + 4'999, 3);
  EXPECT_EQ(kit_.get(1, 0, 2), 1u) << "the damage is in another layer";
  EXPECT_EQ(kit_.get(1, 2, 1), 0u);
  EXPECT_EQ(kit_.why_missed, Code::kCorrupt);
  EXPECT_EQ(kit_.stats().corrupt.value(), 1u);
  EXPECT_EQ(kit_.get(1, 0, 1), 0u) << "complete or absent";
  ASSERT_TRUE(kit_.reopen());
  EXPECT_EQ(kit_.lookup(1), Tier::kNone) << "dropped for good";
  ASSERT_TRUE(kit_.put(1, 2));
  ASSERT_TRUE(kit_.reopen());
  EXPECT_EQ(kit_.get(1), 2u);
}

TEST_F(FlashTest, AnOlderImageOfTheSameRecordInItsPlaceIsNoticed) {
  open();
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kSynced));
  ASSERT_TRUE(kit_.remove(1));
  ASSERT_TRUE(kit_.put(1, 2, AckLevel::kSynced));
  ASSERT_TRUE(kit_.reopen());
  // Where the image of a version begins: its table page comes before slab 0.
  const auto image_of = [&](std::uint64_t version) {
    std::vector<std::byte> slab(5'000), found(5'000);
    fill_slab(slab, 1, version, 0);
    std::uint64_t at = 4 << 20;
    for (; at < kit_.drive().size(); at += kPageBytes) {
      kit_.drive().peek(at, found);
      if (found == slab) return at - kPageBytes;
    }
    return std::uint64_t{0};
  };
  const std::uint64_t old_image = image_of(1), new_image = image_of(2);
  ASSERT_TRUE(old_image != 0 && new_image != 0);
  std::vector<std::byte> image(kPageBytes + 4 * 2 * kPageBytes);
  kit_.drive().peek(old_image, image);
  kit_.drive().poke(new_image, image);
  EXPECT_EQ(kit_.get(1), 0u) << "every checksum inside it is right, but it is not what was put last";
  EXPECT_EQ(kit_.why_missed, Code::kCorrupt);
}

TEST_F(FlashTest, ManyErrorsTurnTheTierOffAndThePoolGoesOn) {
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
}

TEST_F(FlashTest, AHangingDiskTurnsTheTierOffInsteadOfFillingThePool) {
  open();
  std::optional<Code> code;
  kit_.drive().stall(UINT64_MAX, Duration::max());
  start_put(1, code);
  kit_.loop.run_for(std::chrono::seconds(25));
  EXPECT_EQ(kit_.stats().tier_off.value(), 1u);
  for (std::uint64_t n = 100; n < 200; ++n) ASSERT_TRUE(kit_.put(n));
  kit_.kill();
}

// After a stop of the process its timers see seconds in which nothing ran.
TEST_F(FlashTest, AWatchdogThatComesLateDoesNotTakeTheDeviceForHanging) {
  open();
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kWritten));  // a segment is open
  kit_.loop.run_for(Millis(50));
  std::optional<Code> code;
  kit_.drive().stall(1, std::chrono::seconds(15));
  start_put(1, code);
  kit_.loop.run_for(Millis(500));  // the frame is on its way
  kit_.clock.advance_to(after(kit_.loop.now(), std::chrono::seconds(12)));
  kit_.loop.run_for(std::chrono::seconds(5));
  EXPECT_EQ(kit_.stats().tier_off.value(), 0u);
  EXPECT_EQ(code, Code::kOk);
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

// ---- Size ----

TEST_F(FlashTest, GrowsAndKeepsItsContent) {
  open();
  for (std::uint64_t n = 0; n < 20; ++n) ASSERT_TRUE(kit_.put(n));
  kit_.close();
  kit_.options.flash_bytes += 8 * kit_.options.segment_bytes;
  open();
  for (std::uint64_t n = 0; n < 20; ++n) EXPECT_EQ(kit_.get(n), 1u);
  for (std::uint64_t n = 20; n < 60; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  EXPECT_EQ(kit_.stats().segments_evicted.value(), 0u);
}

TEST_F(FlashTest, ShrinksAndKeepsWhatFitsAndRemovals) {
  kit_.options.flash_bytes = (4 << 20) + 16 * kit_.options.segment_bytes;
  open();
  for (std::uint64_t n = 0; n < 70; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  for (std::uint64_t n = 0; n < 4; ++n) EXPECT_TRUE(kit_.remove(n));
  kit_.close();
  kit_.options.flash_bytes = (4 << 20) + 6 * kit_.options.segment_bytes;
  open();
  std::uint64_t kept = 0;
  for (std::uint64_t n = 0; n < 70; ++n) kept += kit_.get(n) == 1 ? 1 : 0;
  EXPECT_GT(kept, 10u);
  EXPECT_LE(kept, 36u);
  for (std::uint64_t n = 0; n < 4; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kNone) << "removed";
  for (std::uint64_t n = 100; n < 160; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  ASSERT_TRUE(kit_.reopen());
  for (std::uint64_t n = 0; n < 4; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kNone) << "removed";
}

// Filled more than once around, the oldest segments may lie anywhere: in what stays and in what goes.
TEST_F(FlashTest, ShrinksWhereverTheOldestSegmentsLie) {
  for (std::uint64_t segments = 1; segments <= 8; ++segments) {
    SCOPED_TRACE(segments);
    StoreKit kit(segments);
    ASSERT_TRUE(kit.open()) << kit.why;
    std::uint64_t n = 0;
    while (kit.stats().segments_evicted.value() < segments) {
      const Status put = kit.put(n++, 1, AckLevel::kWritten);
      ASSERT_TRUE(put || put.error().code == Code::kBusy);
      kit.loop.run_for(Millis(2));
    }
    kit.close();
    kit.options.flash_bytes = (4 << 20) + 4 * kit.options.segment_bytes;
    ASSERT_TRUE(kit.open()) << kit.why;
    for (std::uint64_t m = n; m < n + 40; ++m) ASSERT_TRUE(kit.put(m, 1, AckLevel::kWritten));
  }
}

// The first to be given up among the segments that stay hold tombstones for another one that stays, and everything that
// is free goes: only what goes can take those tombstones.
TEST_F(FlashTest, ShrinksWhenNothingIsFreeAmongTheSegmentsThatStay) {
  open();
  for (std::uint64_t n = 0; n < 5; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));  // segment 0
  for (std::uint64_t segment = 1; segment < 5; ++segment) {
    for (std::uint64_t n = 0; n < 4; ++n) ASSERT_TRUE(kit_.put(10 * segment + n, 1, AckLevel::kWritten));
    EXPECT_TRUE(kit_.remove(segment - 1));
    kit_.loop.run_for(Millis(100));
    ASSERT_EQ(kit_.stats().tombstones.value(), segment);
    ASSERT_TRUE(kit_.put(10 * segment + 4, 1, AckLevel::kWritten));
    EXPECT_EQ(kit_.get(4), 1u) << "segment 0 is the one that is used";
  }
  ASSERT_TRUE(kit_.put(50, 1, AckLevel::kWritten));
  ASSERT_EQ(kit_.stats().segments_free.value(), 2u) << "6 and 7";
  kit_.close();
  kit_.options.flash_bytes = (4 << 20) + 4 * kit_.options.segment_bytes;
  open();
  EXPECT_EQ(kit_.lookup(4), Tier::kFlash) << "used most";
  for (std::uint64_t n = 0; n < 4; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kNone) << "removed";
  for (std::uint64_t n = 100; n < 104; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten)) << "there is room";
  kit_.kill();
  open();
  EXPECT_EQ(kit_.get(103), 1u);
  for (std::uint64_t n = 0; n < 4; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kNone) << "removed";
}

}  // namespace
}  // namespace kvd::store
