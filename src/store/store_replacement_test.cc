// Tests of records that are put again under the same id, on a simulated disk: the newest is found, and after a crash
// never an older one once a newer was written, whichever segments are given up meanwhile.
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "store/flash_health.h"
#include "store/format.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

class ReplacementTest : public ::testing::Test {
 protected:
  void open() { ASSERT_TRUE(kit_.open()) << kit_.why; }
  void crash() {
    kit_.kill();
    open();
  }
  // Puts other records until `segments` more were given up; the one that holds record `keep` is used all the time.
  void turn_over(std::uint64_t segments, std::uint64_t keep) {
    const std::uint64_t until = kit_.stats().segments_evicted.value() + segments;
    while (kit_.stats().segments_evicted.value() < until) {
      EXPECT_EQ(kit_.get(keep), 1u);
      ASSERT_TRUE(kit_.put(next_++, 1, AckLevel::kWritten));
    }
  }
  // Record 0 as version 1 in the first segment, beside record 1, and as version 2 in another.
  void put_in_two_segments() {
    ASSERT_TRUE(kit_.put(0, 1, AckLevel::kSynced));
    ASSERT_TRUE(kit_.put(1, 1, AckLevel::kSynced));
    for (int i = 0; i < 6; ++i) ASSERT_TRUE(kit_.put(next_++, 1, AckLevel::kWritten));
    ASSERT_TRUE(kit_.replace(0, 2, AckLevel::kSynced));
  }

  // Where the drive holds the frame of a record that was written alone: a page, its table, its slabs.
  std::uint64_t frame_of(std::uint64_t number, std::uint64_t version) {
    std::vector<std::byte> slab(5'000);
    for (std::uint64_t at = kHeadBytes; at + slab.size() <= kit_.options.flash_bytes; at += kPageBytes) {
      kit_.drive().peek(at, slab);
      if (slab_is(slab, number, version, 0)) return at - 2 * kPageBytes;
    }
    ADD_FAILURE() << "record " << number << " is not there";
    return kHeadBytes;
  }
  // From there to the end of the segment.
  std::vector<std::byte> content_from(std::uint64_t at) {
    const std::uint64_t inside = (at - kHeadBytes) % kit_.options.segment_bytes;
    std::vector<std::byte> bytes(kit_.options.segment_bytes - inside);
    kit_.drive().peek(at, bytes);
    return bytes;
  }
  void make_unreadable_from(std::uint64_t at) {
    const std::vector<std::byte> nothing(content_from(at).size());
    kit_.drive().poke(at, nothing);
  }

  StoreKit kit_;
  std::uint64_t next_ = 100;
};

TEST_F(ReplacementTest, ReadersFindTheNewOneAtOnceAndPinsKeepTheOldOne) {
  open();
  ASSERT_TRUE(kit_.replace(0, 1)) << "the first one";
  const auto foreign = foreign_of(0);
  Get get;
  get.ns = kit_.ns;
  get.id = id_of(0);
  get.foreign = foreign;
  std::optional<RecordView> old;
  get.on_done = [&](Result<RecordView> view) { old = std::move(*view); };
  kit_.store->start_get(get);
  ASSERT_TRUE(old);
  ASSERT_TRUE(kit_.replace(0, 2));
  EXPECT_EQ(kit_.get(0), 2u);
  kit_.settle();
  EXPECT_TRUE(slab_is({old->first_slab, 5'000}, 0, 1, 0));
  EXPECT_EQ(kit_.stats().puts_replacing.value(), 1u);
}

TEST_F(ReplacementTest, OneThatIsDroppedLeavesTheOldOne) {
  open();
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kWritten));
  {
    const auto put = kit_.store->begin_replacement(kit_.ns, id_of(0), foreign_of(0));
  }
  EXPECT_EQ(kit_.get(0), 1u);
  EXPECT_EQ(kit_.stats().unfinished_puts.value(), 0u);
  crash();
  EXPECT_EQ(kit_.get(0), 1u);
}

TEST_F(ReplacementTest, WorksWithoutFlash) {
  kit_.options.flash_bytes = 0;
  open();
  for (std::uint64_t version = 1; version <= 8; ++version) {
    ASSERT_TRUE(kit_.replace(0, version));
    EXPECT_EQ(kit_.get(0), version);
  }
  EXPECT_EQ(kit_.stats().pool_records.value(), 1u);
}

TEST_F(ReplacementTest, OneThatWasNotWrittenLeavesTheOldOneAfterAKill) {
  open();
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kWritten));
  ASSERT_TRUE(kit_.replace(0, 2, AckLevel::kPooled));
  EXPECT_EQ(kit_.get(0), 2u);
  crash();
  EXPECT_EQ(kit_.get(0), 1u);
}

TEST_F(ReplacementTest, TheNewestIsFoundAfterAKillAndNeedsNoTombstone) {
  open();
  for (std::uint64_t version = 1; version <= 8; ++version) ASSERT_TRUE(kit_.replace(0, version, AckLevel::kWritten));
  EXPECT_EQ(kit_.stats().tombstones.value(), 0u);
  crash();
  EXPECT_EQ(kit_.get(0), 8u);
  put_in_two_segments();
  EXPECT_EQ(kit_.stats().tombstones.value(), 0u);
  crash();
  EXPECT_EQ(kit_.get(0), 2u);
}

// The segment of the newer is given up, that of the older is not: a miss is legal then, the older would be wrong.
TEST_F(ReplacementTest, AnOlderOneDoesNotComeBackWhenTheNewerIsEvicted) {
  open();
  put_in_two_segments();
  turn_over(6, 1);
  EXPECT_EQ(kit_.get(1), 1u);
  crash();
  EXPECT_EQ(kit_.get(1), 1u) << "the first segment is still there";
  EXPECT_EQ(kit_.get(0), 0u);
}

TEST_F(ReplacementTest, NorAfterARestartInBetween) {
  open();
  put_in_two_segments();
  crash();
  EXPECT_EQ(kit_.get(0), 2u);
  turn_over(6, 1);
  crash();
  EXPECT_EQ(kit_.get(1), 1u) << "the first segment is still there";
  EXPECT_EQ(kit_.get(0), 0u);
}

// It stays in memory only, and what it replaces is given up with it.
TEST_F(ReplacementTest, AnOlderOneDoesNotComeBackWhenTheNewerCannotBeWritten) {
  open();
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kWritten));
  // Its frame, and the frame of the second attempt behind a footer.
  for (const std::uint64_t nth : {1u, 3u}) kit_.drive().inject(io::DiskOp::Kind::kWrite, nth, io::SimFault::kError);
  const Status written = kit_.replace(0, 2, AckLevel::kWritten);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Code::kIo);
  EXPECT_EQ(kit_.get(0), 2u);
  kit_.settle();
  crash();
  EXPECT_EQ(kit_.get(0), 0u);
}

TEST_F(ReplacementTest, WhoWaitsForTheOldOneIsToldWhenTheNewOneIsWritten) {
  open();
  std::optional<Code> code;
  kit_.start_put(0, code, AckLevel::kWritten);
  ASSERT_TRUE(kit_.replace(0, 2, AckLevel::kPooled));
  EXPECT_FALSE(code);
  const auto idle = Millis(20);  // shorter than what idle demotion waits for
  EXPECT_TRUE(kit_.loop.run_until([&] { return code.has_value(); }, idle));
  EXPECT_EQ(code, Code::kOk);
  crash();
  EXPECT_EQ(kit_.get(0), 2u);
}

TEST_F(ReplacementTest, ARemovalEndsAllOfThem) {
  open();
  put_in_two_segments();
  ASSERT_TRUE(kit_.replace(0, 3, AckLevel::kPooled));
  EXPECT_TRUE(kit_.remove(0));
  EXPECT_EQ(kit_.get(0), 0u);
  EXPECT_EQ(kit_.await_removals(Millis(20)), Code::kOk);
  crash();
  EXPECT_EQ(kit_.get(0), 0u);
  ASSERT_TRUE(kit_.replace(0, 4, AckLevel::kWritten));
  crash();
  EXPECT_EQ(kit_.get(0), 4u);
}

// Its tombstone names the newest, in the second segment. The first one's record is hidden by it as well, and stays so
// when the second segment and the one with the tombstone have gone.
TEST_F(ReplacementTest, ARemovalHoldsForAnOlderOneWhereTheNewerCannotBeReadAnyMore) {
  open();
  put_in_two_segments();
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(kit_.put(next_++, 1, AckLevel::kWritten));
  EXPECT_TRUE(kit_.remove(0));
  ASSERT_TRUE(kit_.put(next_++, 1, AckLevel::kSynced));  // behind the tombstone
  kit_.kill();
  const std::uint64_t frame = frame_of(0, 2);
  make_unreadable_from(frame - (frame - kHeadBytes) % kit_.options.segment_bytes + kPageBytes);
  open();
  EXPECT_EQ(kit_.get(0), 0u);
  turn_over(12, 1);
  crash();
  EXPECT_EQ(kit_.get(1), 1u) << "the first segment is still there";
  EXPECT_EQ(kit_.get(0), 0u);
}

// An opening that cannot read a segment does not know how far the puts in it were numbered.
TEST_F(ReplacementTest, APutIsNewerThanWhatOnlyALaterOpeningCanReadAgain) {
  open();
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(kit_.put(next_++, 1, AckLevel::kWritten));  // the last three in the second
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kSynced));
  kit_.kill();
  const std::uint64_t frame = frame_of(next_ - 1, 1);
  const auto content = content_from(frame);
  make_unreadable_from(frame);
  open();
  ASSERT_EQ(kit_.get(next_ - 2), 1u);
  ASSERT_EQ(kit_.get(next_ - 1), 0u);
  ASSERT_EQ(kit_.get(0), 0u);
  ASSERT_TRUE(kit_.replace(0, 2, AckLevel::kSynced));
  kit_.kill();
  kit_.drive().poke(frame, content);
  open();
  EXPECT_EQ(kit_.get(next_ - 1), 1u) << "it is read again";
  EXPECT_EQ(kit_.get(0), 2u);
}

// In the turn of the loop between the moment when the tier goes off and the one in which all are told.
TEST_F(ReplacementTest, WhoWaitsForTheOldOneIsToldWhereTheTierGoesOff) {
  open();
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kSynced));
  kit_.loop.run_for(std::chrono::minutes(1));
  kit_.drive().stall(100, Duration::max());
  std::optional<Code> code;
  kit_.start_put(0, code);
  kit_.loop.settle();
  bool between = false;
  io::Timer replace(kit_.loop, [&] {
    between = kit_.log.count("flash tier turned off") > 0 && kit_.stats().tier_off.value() == 0;
    EXPECT_TRUE(kit_.replace(0, 2));
  });
  replace.arm_in(FlashHealth::kStallMax);
  kit_.loop.run_for(std::chrono::minutes(1));
  EXPECT_TRUE(between);
  EXPECT_EQ(kit_.stats().tier_off.value(), 1U);
  EXPECT_EQ(code, Code::kIo);
  EXPECT_EQ(kit_.get(0), 2u);
  kit_.kill();
}

TEST_F(ReplacementTest, AGetThatWaitsForTheOldOneEnds) {
  open();
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kWritten));
  ASSERT_TRUE(kit_.reopen());
  const auto foreign = foreign_of(0);
  Get get;
  get.ns = kit_.ns;
  get.id = id_of(0);
  get.foreign = foreign;
  std::optional<Code> code;
  get.on_done = [&](const Result<RecordView>& view) { code = view ? Code::kOk : view.error().code; };
  kit_.store->start_get(get);
  ASSERT_FALSE(code);
  ASSERT_TRUE(kit_.replace(0, 2));
  EXPECT_TRUE(kit_.loop.run_until([&] { return code.has_value(); }, Millis(20)));
  EXPECT_EQ(code, Code::kNotFound);
  EXPECT_EQ(kit_.get(0), 2u);
}

}  // namespace
}  // namespace kvd::store
