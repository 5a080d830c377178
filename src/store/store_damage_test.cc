// Damage at rest: bits are turned over all through a populated store, and wrong bytes must never be given out. The same
// sweep without verification gives some, which shows that it hits what it must.
#include <algorithm>
#include <functional>
#include <optional>

#include <gtest/gtest.h>

#include "base/random.h"
#include "store/format.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

constexpr std::uint64_t kStored = 30;

struct Outcome {
  std::uint64_t right = 0, missed = 0, wrong = 0, corrupt = 0;
};

// Opens the store as it lies, reads every record, leaves no trace but what reading leaves.
Outcome read_all(StoreKit& kit) {
  Outcome outcome;
  kit.wrong = &outcome.wrong;
  kit.versions_max = 1;
  for (std::uint64_t n = 0; n < kStored; ++n) {
    const std::uint64_t got = kit.get(n);
    outcome.right += got == 1 ? 1 : 0;
    outcome.missed += got == 0 ? 1 : 0;
  }
  outcome.corrupt = kit.stats().corrupt.value();
  return outcome;
}

class DamageTest : public ::testing::Test {
 protected:
  // A store of kStored records in several sealed segments; returns its bytes.
  void fill() {
    kit_.options.flash_bytes = kHeadBytes + 16 * kit_.options.segment_bytes;
    ASSERT_TRUE(kit_.open()) << kit_.why;
    for (std::uint64_t n = 0; n < kStored; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
    kit_.close();
    image_.resize(kit_.drive().size());
    kit_.drive().peek(0, image_);
  }
  // The pages that are not zero.
  [[nodiscard]] std::vector<std::uint64_t> used_pages() const {
    std::vector<std::uint64_t> pages;
    for (std::uint64_t at = 0; at < image_.size(); at += kPageBytes) {
      const auto page = Bytes(image_).subspan(at, kPageBytes);
      if (std::ranges::any_of(page, [](std::byte b) { return b != std::byte{0}; })) pages.push_back(at);
    }
    return pages;
  }
  // Damages the original image by `flip` and reads everything.
  template <class Flip>
  Outcome damaged(Flip flip) {
    kit_.store.reset();
    kit_.drive().poke(0, image_);
    flip(kit_.drive());
    const Status opened = kit_.open();
    EXPECT_TRUE(opened) << kit_.why;
    return opened ? read_all(kit_) : Outcome{};
  }

  StoreKit kit_;
  std::vector<std::byte> image_;
};

TEST_F(DamageTest, NoFlippedBitGivesWrongBytesOrStopsTheStore) {
  fill();
  Random random(11);
  Outcome sum;
  std::uint64_t flips = 0;
  for (const std::uint64_t page : used_pages()) {
    const Outcome outcome = damaged([&](io::SimDrive& drive) {
      drive.flip_bit(page + random.below(kPageBytes), static_cast<unsigned>(random.below(8)));
    });
    ++flips;
    sum.wrong += outcome.wrong;
    sum.missed += outcome.missed;
    sum.corrupt += outcome.corrupt;
    EXPECT_GE(outcome.right + 12, kStored) << "one bit costs at most two segments' records, page " << page / kPageBytes;
  }
  EXPECT_EQ(sum.wrong, 0u);
  EXPECT_GT(flips, 250u);
  EXPECT_GT(sum.corrupt, flips / 3) << "most pages hold slabs";
  RecordProperty("flips", static_cast<int>(flips));
}

TEST_F(DamageTest, ManyFlippedBitsAtOnceGiveNoWrongBytes) {
  fill();
  const auto pages = used_pages();
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    const Outcome outcome = damaged([&](io::SimDrive& drive) {
      for (int i = 0; i < 60; ++i) {
        std::uint64_t page = pages[random.below(pages.size())];
        if (page < kHeadBytes) continue;  // losing every superblock is another test
        drive.flip_bit(page + random.below(kPageBytes), static_cast<unsigned>(random.below(8)));
      }
    });
    EXPECT_EQ(outcome.wrong, 0u);
    EXPECT_EQ(outcome.right + outcome.missed, kStored);
  }
}

// Records that pass through a buffer on their way from flash are verified like all others, and forgotten when damaged.
TEST_F(DamageTest, PassingGetsGiveNoWrongBytesEither) {
  fill();
  kit_.passing = true;
  const auto pages = used_pages();
  std::uint64_t missed = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    Random random(seed);
    const Outcome outcome = damaged([&](io::SimDrive& drive) {
      for (int i = 0; i < 60; ++i) {
        const std::uint64_t page = pages[random.below(pages.size())];
        if (page < kHeadBytes) continue;
        drive.flip_bit(page + random.below(kPageBytes), static_cast<unsigned>(random.below(8)));
      }
    });
    EXPECT_EQ(outcome.wrong, 0u);
    EXPECT_EQ(outcome.right + outcome.missed, kStored);
    missed += outcome.missed;
    for (std::uint64_t n = 0; n < kStored; ++n) {
      if (kit_.get(n) == 0) {
        EXPECT_EQ(kit_.lookup(n), Tier::kNone) << n;
      }
    }
    EXPECT_EQ(kit_.stats().pool_bytes_used.value(), 0u);
  }
  EXPECT_GT(missed, 20u);
}

TEST_F(DamageTest, WithoutVerificationTheSameSweepGivesWrongBytes) {
  kit_.options.verify = false;
  fill();
  Random random(11);
  std::uint64_t wrong = 0;
  for (const std::uint64_t page : used_pages()) {
    wrong += damaged([&](io::SimDrive& drive) {
               drive.flip_bit(page + random.below(kPageBytes), static_cast<unsigned>(random.below(8)));
             }).wrong;
    if (wrong > 10) break;
  }
  EXPECT_GT(wrong, 10u);
}

TEST_F(DamageTest, PagesOfOtherPlacesAreNoticed) {
  fill();
  const auto pages = used_pages();
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    const Outcome outcome = damaged([&](io::SimDrive& drive) {  // misdirected writes
      for (int i = 0; i < 10; ++i) {
        const std::uint64_t from = pages[random.below(pages.size())], to = pages[random.below(pages.size())];
        if (to >= kHeadBytes) drive.poke(to, Bytes(image_).subspan(from, kPageBytes));
      }
    });
    EXPECT_EQ(outcome.wrong, 0u);
  }
}

// The newest headers rot: the generations that they had must not be given again, or footers that lie in their segments
// would count for what is written there later.
TEST_F(DamageTest, GenerationsOfLostHeadersAreNotUsedAgain) {
  fill();
  kit_.drive().poke(0, image_);
  const std::vector<std::byte> nothing(kPageBytes);
  for (std::uint64_t segment = 1; segment < 16; ++segment) kit_.drive().poke(kit_.segment_at(segment), nothing);
  ASSERT_TRUE(kit_.open()) << kit_.why;
  kit_.versions_max = 1;
  for (std::uint64_t n = 1'000; n < 1'004; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  kit_.kill();
  ASSERT_TRUE(kit_.open()) << kit_.why;
  for (std::uint64_t n = 1'000; n < 1'004; ++n) EXPECT_EQ(kit_.get(n), 1u) << n;
}

TEST_F(DamageTest, AStoreWithoutAnyValidSuperblockStartsEmpty) {
  fill();
  const Outcome outcome = damaged([](io::SimDrive& drive) {
    for (std::uint64_t copy = 0; copy < kSuperblockCopies; ++copy) drive.flip_bit(copy * kSuperblockStride + 100, 0);
  });
  EXPECT_EQ(outcome.right, 0u);
  EXPECT_EQ(kit_.log.count("starting empty"), 1u);
}

TEST_F(DamageTest, OneValidSuperblockIsEnough) {
  fill();
  const Outcome outcome = damaged([](io::SimDrive& drive) {
    for (std::uint64_t copy = 0; copy < 3; ++copy) drive.flip_bit(copy * kSuperblockStride + 100, 0);
  });
  EXPECT_EQ(outcome.right, kStored);
}

// ---- In the pool ----

class PoolDamageTest : public ::testing::Test {
 protected:
  bool check(std::uint64_t n) { return kit_.store->check(kit_.ns, id_of(n)); }
  StoreKit kit_;
};

TEST_F(PoolDamageTest, ASoundRecordStays) {
  ASSERT_TRUE(kit_.open()) << kit_.why;
  ASSERT_TRUE(kit_.put(1));
  EXPECT_FALSE(check(1));
  EXPECT_FALSE(check(2)) << "there is none";
  kit_.settle();
  EXPECT_FALSE(check(1));
  ASSERT_TRUE(kit_.reopen());
  EXPECT_FALSE(check(1)) << "not in the pool";
  EXPECT_EQ(kit_.get(1, 1, 1), 1u);
  EXPECT_FALSE(check(1)) << "one layer of it is";
  EXPECT_EQ(kit_.get(1), 1u);
  EXPECT_EQ(kit_.stats().corrupt.value(), 0u);
}

TEST_F(PoolDamageTest, ADamagedRecordThatIsNowhereElseCanBePutAgain) {
  kit_.options.flash_bytes = 0;
  ASSERT_TRUE(kit_.open()) << kit_.why;
  ASSERT_TRUE(kit_.put(1, 1));
  ASSERT_TRUE(kit_.flip_in_pool(1, 2));
  EXPECT_TRUE(check(1));
  EXPECT_EQ(kit_.stats().corrupt.value(), 1u);
  EXPECT_EQ(kit_.get(1), 0u);
  ASSERT_TRUE(kit_.put(1, 2));
  EXPECT_EQ(kit_.get(1), 2u);
  EXPECT_EQ(kit_.stats().pool_records.value(), 1u);
}

TEST_F(PoolDamageTest, WhatFlashHoldsServesInstead) {
  ASSERT_TRUE(kit_.open()) << kit_.why;
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kWritten));
  ASSERT_TRUE(kit_.flip_in_pool(1, 0));
  EXPECT_TRUE(check(1));
  EXPECT_EQ(kit_.lookup(1), Tier::kFlash);
  EXPECT_EQ(kit_.get(1), 1u);
}

// The damage came before the record was written: neither copy is good, and a restart brings nothing back.
TEST_F(PoolDamageTest, ADirtyRecordIsDroppedAndItsPutSaysSo) {
  ASSERT_TRUE(kit_.open()) << kit_.why;
  ASSERT_TRUE(kit_.put(0, 1, AckLevel::kWritten));
  kit_.drive().stall(1, Millis(50));
  ASSERT_TRUE(kit_.put(1, 1));
  std::optional<Code> code;
  kit_.store->await(kit_.ns, id_of(1), AckLevel::kWritten,
                    [&](Status status) { code = status ? Code::kOk : status.error().code; });
  kit_.loop.run_for(Millis(10));  // its frame is on the way: from here on no byte of it may change
  EXPECT_FALSE(code.has_value());
  EXPECT_FALSE(check(1));
  kit_.loop.run_for(Millis(200));
  EXPECT_EQ(code, Code::kOk);

  ASSERT_TRUE(kit_.put(2, 1));
  ASSERT_TRUE(kit_.flip_in_pool(2, 3));
  code.reset();
  kit_.store->await(kit_.ns, id_of(2), AckLevel::kWritten,
                    [&](Status status) { code = status ? Code::kOk : status.error().code; });
  EXPECT_TRUE(check(2));
  kit_.loop.run_for(Millis(200));
  EXPECT_EQ(code, Code::kCorrupt);
  ASSERT_TRUE(kit_.reopen());
  EXPECT_EQ(kit_.lookup(2), Tier::kNone);
}

// A record whose segment a flush has failed for, so that it is written anew; in memory it goes bad meanwhile.
class DamagedRewriteTest : public PoolDamageTest {
 protected:
  void rewrite() {
    ASSERT_TRUE(kit_.open()) << kit_.why;
    ASSERT_TRUE(kit_.put(0, 1, AckLevel::kSynced));
    kit_.loop.run_for(Millis(20));
    kit_.drive().inject(io::DiskOp::Kind::kSync, 1, io::SimFault::kError);
    ASSERT_EQ(kit_.put(1, 1, AckLevel::kSynced).error().code, Code::kIo);
    ASSERT_EQ(kit_.get(1), 1u);
    kit_.store->await(kit_.ns, id_of(1), AckLevel::kSynced,
                      [this](Status status) { code_ = status ? Code::kOk : status.error().code; });
  }
  void go_bad() {
    kit_.drive().let_change();
    ASSERT_TRUE(kit_.flip_in_pool(1, 2));
    EXPECT_TRUE(check(1));
  }
  void expect_corrupt() {
    kit_.loop.run_for(Millis(200));
    EXPECT_EQ(code_, Code::kCorrupt);
  }

  std::optional<Code> code_;
};

// Nothing of it has gone to the drive yet.
TEST_F(DamagedRewriteTest, TheFirstCopyServesWhereItIsInNoFrame) {
  rewrite();
  go_bad();
  EXPECT_EQ(kit_.lookup(1), Tier::kFlash);
  expect_corrupt();
  EXPECT_EQ(kit_.get(1), 1u);
  kit_.kill();
  ASSERT_TRUE(kit_.open()) << kit_.why;
  EXPECT_EQ(kit_.get(1), 1u);
}

// What is in the frame has to be buried, and the tombstone ends the first copy as well: so nobody is promised that.
TEST_F(DamagedRewriteTest, NothingServesWhereItIsInAFrame) {
  rewrite();
  const std::uint64_t end = kit_.drive().size();
  kit_.drive().hold_back(0, end, Millis(50));
  kit_.loop.run_for(Millis(5));
  go_bad();
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
  kit_.drive().hold_back(0, end, Duration::zero());
  expect_corrupt();
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
  kit_.kill();
  ASSERT_TRUE(kit_.open()) << kit_.why;
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
  EXPECT_EQ(kit_.get(0), 1u);
}

// ---- One record, read again, dropped, put again ----

class DamagedRecordTest : public ::testing::Test {
 protected:
  void open() { ASSERT_TRUE(kit_.open()) << kit_.why; }
  // Where the first byte of the record's first slab lies.
  std::uint64_t place_of(std::uint64_t number) { return kit_.find_on_drive(number).value(); }

  StoreKit kit_;
};

TEST_F(DamagedRecordTest, ATransientReadErrorIsReadAgain) {
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

TEST_F(DamagedRecordTest, ADamagedRecordIsDroppedForGoodAndCanBePutAgain) {
  open();
  ASSERT_TRUE(kit_.put(1));
  ASSERT_TRUE(kit_.reopen());
  kit_.drive().flip_bit(kit_.find_on_drive(1, 1, 2).value() + 4'999, 3);
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

// A flush has failed, so the record is written anew; while that is under way the scrubber reads the first copy.
TEST_F(DamagedRecordTest, ADamagedCopyDoesNotTakeItsSuccessorWithIt) {
  open();
  for (std::uint64_t n = 0; n < 4; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  kit_.close();
  kit_.options.scrub_bytes_per_s = 64 << 10;  // a footer, and a second later the records
  open();
  ASSERT_EQ(kit_.get(1), 1u);
  kit_.drive().flip_bit(place_of(1), 3);
  kit_.drive().inject(io::DiskOp::Kind::kSync, 1, io::SimFault::kError);
  EXPECT_EQ(kit_.put(1, 1, AckLevel::kSynced).error().code, Code::kIo);
  kit_.drive().hold_back(kHeadBytes, kit_.drive().size() - kHeadBytes, std::chrono::seconds(8));
  std::optional<Code> code;
  kit_.store->await(kit_.ns, id_of(1), AckLevel::kSynced,
                    [&](Status status) { code = status ? Code::kOk : status.error().code; });
  kit_.loop.run_for(Millis(10));
  kit_.drive().hold_back(kHeadBytes, kit_.drive().size() - kHeadBytes, Duration::zero());
  ASSERT_TRUE(kit_.loop.run_until([&] { return kit_.stats().corrupt.value() == 1; }, std::chrono::seconds(7)));
  EXPECT_FALSE(code.has_value()) << "the frame is under way";
  ASSERT_TRUE(kit_.loop.run_until([&] { return code.has_value(); }, std::chrono::seconds(5)));
  EXPECT_EQ(code, Code::kOk);
  kit_.loop.run_for(Millis(200));
  EXPECT_EQ(kit_.stats().tombstones.value(), 1u);
  kit_.kill();
  kit_.options.scrub_bytes_per_s = 0;
  open();
  EXPECT_EQ(kit_.get(1), 1u);
}

// The machine stops with an open segment of two records, of which the start finds one. What it leaves out of the
// footer that it writes it says; each failed read is in the store's figure.
class LeftOutTest : public DamagedRecordTest {
 protected:
  void fill() {
    kit_.name_space = namespace_of(4, 20'000);  // so large that a frame is read without the end of its record
    open();
    for (std::uint64_t n = 1; n <= 2; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));
    kit_.lose_power(1, 0);
    late_page_ = place_of(1) + 17 * kPageBytes;
  }
  void expect_the_other() {
    open();
    EXPECT_EQ(kit_.lookup(1), Tier::kNone);
    EXPECT_EQ(kit_.get(2), 1u);
  }

  // With its segment, as nothing else can tell of it.
  void expect_removed(const std::function<void()>& before_the_next_start) {
    EXPECT_FALSE(kit_.remove(1)) << "it is not known";
    EXPECT_EQ(kit_.await_removals(std::chrono::seconds(5)), Code::kOk);
    before_the_next_start();
    kit_.drive().mend();
    kit_.kill();
    open();
    EXPECT_EQ(kit_.lookup(1), Tier::kNone);
  }

  // The end of the segment's footer.
  std::uint64_t last_page() { return kit_.segment_at(kit_.segment_of(1) + 1) - kPageBytes; }

  std::uint64_t late_page_ = 0;
};

TEST_F(LeftOutTest, ARecordThatCannotBeReadTwice) {
  fill();
  kit_.drive().wear_out(io::DiskOp::Kind::kRead, late_page_, 1);
  expect_the_other();
  EXPECT_EQ(kit_.log.count("1 records that could not be read twice, and 0 that are damaged, are missed for good"), 1u);
  EXPECT_EQ(kit_.stats().recovered_dropped.value(), 1u);
  EXPECT_EQ(kit_.stats().io_errors.value(), 2u) << "a read and its repetition";
  kit_.drive().mend();
  kit_.kill();
  expect_the_other();
  EXPECT_EQ(kit_.stats().io_errors.value(), 0u);
}

TEST_F(LeftOutTest, ARecordThatIsDamaged) {
  fill();
  kit_.drive().flip_bit(late_page_, 3);
  expect_the_other();
  EXPECT_EQ(kit_.log.count("0 records that could not be read twice, and 1 that are damaged, are missed for good"), 1u);
  EXPECT_EQ(kit_.stats().io_errors.value(), 0u);
}

TEST_F(LeftOutTest, WhatIsDamagedAndRemovedWithoutAFooterStaysAway) {
  fill();
  kit_.drive().flip_bit(late_page_, 3);
  kit_.drive().wear_out(io::DiskOp::Kind::kWrite, last_page(), kPageBytes);
  expect_the_other();
  expect_removed([this] {
    kit_.drive().flip_bit(late_page_, 3);
    kit_.drive().flip_bit(last_page(), 3);  // what the failed write may have left there
  });
}

// It would find it at the next start, too.
TEST_F(LeftOutTest, WhatIsRemovedWithoutAFooterStaysAway) {
  fill();
  kit_.drive().wear_out(io::DiskOp::Kind::kRead, late_page_, 1);
  kit_.drive().wear_out(io::DiskOp::Kind::kWrite, last_page(), kPageBytes);
  expect_the_other();
  EXPECT_EQ(kit_.log.count("1 records that could not be read twice, and 0 that are damaged, are missed"), 1u);
  EXPECT_EQ(kit_.log.count("for good"), 0u);
  expect_removed([this] { kit_.drive().flip_bit(last_page(), 3); });  // what the failed write may have left there
}

// The footer that leaves it out is lost with power.
TEST_F(LeftOutTest, WhatIsRemovedStaysAwayWithoutTheFooterThatLeavesItOut) {
  fill();
  kit_.drive().wear_out(io::DiskOp::Kind::kRead, late_page_, 1);
  expect_the_other();
  expect_removed([this] { kit_.drive().flip_bit(last_page(), 3); });  // or a power loss has it forgotten
}

TEST_F(LeftOutTest, WhatIsRemovedWhereNothingElseLayStaysAway) {
  kit_.name_space = namespace_of(4, 20'000);
  open();
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kSynced));
  kit_.lose_power(1, 0);
  kit_.drive().wear_out(io::DiskOp::Kind::kRead, place_of(1) + 17 * kPageBytes, 1);
  kit_.drive().hold_back(kit_.segment_at(kit_.segment_of(1)), kPageBytes, std::chrono::seconds(1));
  open();
  expect_removed([] {});
}

// ---- A segment that a start cannot read to its end, and the next one can ----

class PartlyReadTest : public DamagedRecordTest {
 protected:
  // The machine stops with an open segment of four records and the removal of the first of them, each in a frame.
  void fill() {
    open();
    for (std::uint64_t n = 1; n <= 4; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));
    EXPECT_TRUE(kit_.remove(1));
    kit_.loop.run_for(Millis(200));
    ASSERT_EQ(kit_.stats().tombstones.value(), 1u);
    kit_.lose_power(1, 0);
  }
  // What the start reads to find this record's frame touches this page, but not what it reads to find the one before.
  void wear_out(std::uint64_t number) {
    kit_.drive().wear_out(io::DiskOp::Kind::kRead, place_of(number) + 5 * kPageBytes, 1);
  }
  void mend_and_reopen() {
    kit_.drive().mend();
    kit_.kill();
    open();
  }
};

TEST_F(PartlyReadTest, WhatLiesBehindIsThereAtTheNextStart) {
  fill();
  wear_out(3);
  open();
  EXPECT_EQ(kit_.get(2), 1u);
  for (const std::uint64_t n : {3u, 4u}) EXPECT_EQ(kit_.lookup(n), Tier::kNone);
  EXPECT_EQ(kit_.log.count("cannot be read from page 21 on"), 1u);
  EXPECT_EQ(kit_.stats().recovered_dropped.value(), 1u);
  mend_and_reopen();
  EXPECT_EQ(kit_.lookup(1), Tier::kNone) << "its removal lies behind";
  for (const std::uint64_t n : {2u, 3u, 4u}) EXPECT_EQ(kit_.get(n), 1u) << n;
}

TEST_F(PartlyReadTest, WhatIsRemovedOrReplacedMeanwhileStaysAway) {
  fill();
  wear_out(3);
  open();
  EXPECT_FALSE(kit_.remove(3)) << "it is not known";
  EXPECT_EQ(kit_.await_removals(Millis(100)), Code::kOk);
  ASSERT_TRUE(kit_.replace(4, 2, AckLevel::kWritten));
  EXPECT_TRUE(kit_.remove(4));
  kit_.loop.run_for(Millis(200));
  mend_and_reopen();
  for (const std::uint64_t n : {3u, 4u}) EXPECT_EQ(kit_.lookup(n), Tier::kNone) << n;
}

// Whose schema may lie where recovery could not read.
TEST_F(PartlyReadTest, WhatIsRemovedOfAGroupThatNobodyKnowsStaysAway) {
  fill();
  wear_out(3);
  open();
  EXPECT_FALSE(kit_.store->remove(kit_.ns, id_of(4, 1)));
  EXPECT_EQ(kit_.await_removals(Millis(100)), Code::kOk);
  mend_and_reopen();
  for (std::uint64_t n = 1; n <= 4; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kNone) << n << " was there too";
}

// The answer comes when it has gone for good, or not at all.
TEST_F(PartlyReadTest, WhereItCannotGoARemovalIsNotAcknowledged) {
  fill();
  wear_out(3);
  open();
  kit_.drive().wear_out(io::DiskOp::Kind::kWrite, kit_.segment_at(kit_.segment_of(3)), kPageBytes);
  EXPECT_FALSE(kit_.remove(3));
  EXPECT_EQ(kit_.await_removals(std::chrono::seconds(60)), Code::kIo);
}

TEST_F(PartlyReadTest, ASegmentOfWhichNothingCanBeReadIsNotFree) {
  fill();
  wear_out(1);
  open();
  for (std::uint64_t n = 1; n <= 4; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kNone) << n;
  for (std::uint64_t n = 11; n <= 13; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));
  mend_and_reopen();
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
  for (const std::uint64_t n : {2u, 3u, 4u, 11u, 12u, 13u}) EXPECT_EQ(kit_.get(n), 1u) << n;
}

TEST_F(DamagedRecordTest, AnOlderImageOfTheSameRecordInItsPlaceIsNoticed) {
  open();
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kSynced));
  ASSERT_TRUE(kit_.remove(1));
  ASSERT_TRUE(kit_.put(1, 2, AckLevel::kSynced));
  ASSERT_TRUE(kit_.reopen());
  // A version's image begins with its table page, before slab 0.
  const std::uint64_t old_image = kit_.find_on_drive(1, 1).value() - kPageBytes;
  const std::uint64_t new_image = kit_.find_on_drive(1, 2).value() - kPageBytes;
  std::vector<std::byte> image(kPageBytes + 4 * 2 * kPageBytes);
  kit_.drive().peek(old_image, image);
  kit_.drive().poke(new_image, image);
  EXPECT_EQ(kit_.get(1), 0u) << "every checksum inside it is right, but it is not what was put last";
  EXPECT_EQ(kit_.why_missed, Code::kCorrupt);
}

}  // namespace
}  // namespace kvd::store
