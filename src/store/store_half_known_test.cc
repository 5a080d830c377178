// Tests of segments that a start does not take in as a whole, and the next one can, on simulated disks: no older
// version comes back from there, whatever goes first.
#include <array>
#include <deque>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "store/format.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

using std::chrono::seconds;

class HalfKnownTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kSegments = 8;

  HalfKnownTest() {
    kit_.options.flash_bytes = kHeadBytes + kSegments * kit_.options.segment_bytes;
    kit_.passing = true;
  }
  void open() { ASSERT_TRUE(kit_.open()) << kit_.why; }
  std::array<std::byte, kPageBytes> header_of(std::uint32_t segment, std::size_t device = 0) {
    std::array<std::byte, kPageBytes> page{};
    kit_.drive(device).peek(kit_.segment_at(segment), page);
    return page;
  }
  // Three records in a segment, and the third one's next version in another one.
  void put_two_versions() {
    for (std::uint64_t n = 1; n <= 3; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));
    old_ = kit_.segment_of(3);
    ASSERT_EQ(kit_.segment_of(1), old_);
    std::uint64_t n = 100;
    while (kit_.find_on_drive(n - 1).value_or(0) < kit_.segment_at(old_ + 1))
      ASSERT_TRUE(kit_.put(n++, 1, AckLevel::kSynced));
    ASSERT_TRUE(kit_.replace(3, 2, AckLevel::kSynced));
    new_ = kit_.segment_of(3, 2);
    ASSERT_NE(new_, old_);
  }
  // The next start finds neither the footer of this record's segment nor what lies there from the record on.
  void wear_out(std::uint64_t number) {
    const std::uint32_t segment = kit_.segment_of(number);
    kit_.drive().wear_out(io::DiskOp::Kind::kRead, kit_.segment_at(segment + 1) - kPageBytes, 1);
    kit_.drive().wear_out(io::DiskOp::Kind::kRead, kit_.find_on_drive(number).value() + 5 * kPageBytes, 1);
  }
  void start_worn(std::uint64_t number) {
    kit_.kill();
    wear_out(number);
    open();
  }
  void start_readable() {
    kit_.kill();
    kit_.drive().mend();
    kit_.options.index_records_max = 0;
    open();
  }

  // All operations of the drive fail, so the tier goes off; and it is back.
  void break_down() {
    kit_.drive().fail_all(EIO);
    for (std::uint64_t n = 1; kit_.stats().tier_off.value() == 0; ++n) {
      ASSERT_LT(n, 2'000U);
      kit_.get(n);
    }
  }
  void come_back() {
    kit_.drive().fail_all(0);
    ASSERT_TRUE(kit_.loop.run_until([&] { return kit_.stats().tier_off.value() == 0; }, std::chrono::minutes(3)));
  }

  StoreKit kit_;
  std::uint32_t old_ = 0, new_ = 0;
  std::uint64_t next_ = 1'000;
};

// Reads keep the old segment in use, so that without more the new version's would be given up before it.
TEST_F(HalfKnownTest, AnOlderVersionThatWasNotReadGoesBeforeTheNewerOne) {
  open();
  put_two_versions();
  start_worn(3);
  ASSERT_EQ(kit_.get(1), 1U) << "what lies before is there";
  ASSERT_EQ(kit_.get(3), 2U);
  bool some_go = false;
  while (kit_.lookup(3) != Tier::kNone) {
    ASSERT_LT(next_, 1'200U);
    ASSERT_TRUE(kit_.put(next_++, 1, AckLevel::kWritten));
    const bool first_goes = kit_.get(1) == 0 && kit_.stats().segments_evicted.value() == 1;
    EXPECT_TRUE(!first_goes || kit_.lookup(3) != Tier::kNone) << "one is enough";
    some_go = some_go || first_goes;
    kit_.loop.run_for(Millis(5));
  }
  EXPECT_TRUE(some_go);
  kit_.loop.run_for(Millis(50));
  start_readable();
  EXPECT_EQ(kit_.get(3), 0U);
}

// Nothing else gets a new header until what is half known has one.
TEST_F(HalfKnownTest, WhatIsGivenUpBesideWaitsForIt) {
  open();
  put_two_versions();
  kit_.options.index_records_max = kit_.stats().flash_records.value();  // what is put more makes it give segments up
  start_worn(3);
  kit_.drive().hold_back(kit_.segment_at(old_), kPageBytes, seconds(2));
  const auto old_header = header_of(old_), new_header = header_of(new_);
  while (kit_.stats().segments_evicted.value() < 2) {
    ASSERT_LT(next_, 1'200U);
    static_cast<void>(kit_.put(next_++));  // the pool may be full
    kit_.get(1);
    kit_.loop.run_for(Millis(5));
  }
  kit_.loop.run_for(seconds(1));
  ASSERT_TRUE(header_of(old_) == old_header);
  EXPECT_TRUE(header_of(new_) == new_header);
  kit_.loop.run_for(seconds(5));
  EXPECT_FALSE(header_of(old_) == old_header);
  EXPECT_FALSE(header_of(new_) == new_header);
}

// What waits is let through by nobody while their device is off, nor when it is back.
TEST_F(HalfKnownTest, WhatIsGivenUpBesideWaitsForItThroughAnOutage) {
  kit_.options.flash_bytes = kHeadBytes + 24 * kit_.options.segment_bytes;
  open();
  for (std::uint64_t n = 300; n < 306; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));
  EXPECT_TRUE(kit_.remove(300));  // what goes first has this to be carried
  kit_.settle();
  put_two_versions();
  ASSERT_EQ(kit_.segment_of(305), old_);
  for (std::uint64_t n = 200; n < 240; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));  // to be read in vain
  kit_.options.index_records_max = kit_.stats().flash_records.value();
  start_worn(3);
  std::vector<std::array<std::byte, kPageBytes>> headers;
  for (std::uint32_t s = 0; s <= kit_.segment_of(239); ++s) {
    kit_.drive().hold_back(kit_.segment_at(s + 1) - kPageBytes, kPageBytes, seconds(1));  // its footer
    headers.push_back(header_of(s));
  }
  const auto changed = [&] {
    std::size_t count = 0;
    for (std::uint32_t s = 0; s < headers.size(); ++s) count += header_of(s) == headers[s] ? 0 : 1;
    return count;
  };
  while (kit_.stats().segments_evicted.value() < 2) {
    ASSERT_LT(next_, 1'200U);
    static_cast<void>(kit_.put(next_++));
    kit_.loop.run_for(Millis(5));
  }
  ASSERT_EQ(changed(), 0U);
  break_down();
  kit_.loop.run_for(seconds(3));  // footers cannot be read, and what their segments hold is looked for in the index
  kit_.drive().fail_all(0);
  while (header_of(old_) == headers[old_]) {
    ASSERT_EQ(changed(), 0U);
    kit_.loop.run_for(Millis(1));
  }
  EXPECT_EQ(kit_.stats().tier_outages.value(), 1U);
  kit_.loop.run_for(seconds(5));
  EXPECT_GE(changed(), 2U);
}

// Removals that no tombstone can name while the device is off give segments up when it is back, in any order.
TEST_F(HalfKnownTest, ManyThatAreDoomedByAnOutageGoAllTheSame) {
  kit_.options.flash_bytes = kHeadBytes + 24 * kit_.options.segment_bytes;
  kit_.options.removals_waiting_max = 0;
  open();
  std::uint64_t last = 0;
  while (last == 0 || kit_.segment_of(last) < 6) ASSERT_TRUE(kit_.put(++last, 1, AckLevel::kSynced));
  kit_.kill();
  std::vector<std::uint64_t> first_of(7);
  for (std::uint64_t n = last; n > 0; --n) first_of[kit_.segment_of(n)] = n;
  for (std::uint32_t s = 0; s < 6; ++s) {
    kit_.drive().flip_bit(kit_.segment_at(s + 1) - 1, 3);  // there is no footer
    kit_.drive().wear_out(io::DiskOp::Kind::kRead, kit_.find_on_drive(first_of[s] + 3).value(), 1);
  }
  open();
  ASSERT_EQ(kit_.stats().tier_off.value(), 0U);
  kit_.drive().stall(UINT64_MAX, Duration::max());
  kit_.get(first_of[6]);
  ASSERT_TRUE(kit_.loop.run_until([&] { return kit_.stats().tier_off.value() == 1; }, seconds(60)));
  for (std::uint32_t s = 1; s < 6; ++s) kit_.remove(first_of[s]);
  kit_.drive().release();
  come_back();
  EXPECT_EQ(kit_.await_removals(seconds(60)), Code::kOk);
  for (std::uint64_t n = 1'000; n < 1'020; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
}

// The index has no room for the rest of what is there: all of it goes, what was begun first before what came later.
TEST_F(HalfKnownTest, OfSeveralTheOldestGoesFirst) {
  open();
  put_two_versions();
  kit_.kill();
  kit_.options.index_records_max = 1;
  kit_.drive().hold_back(kit_.segment_at(old_), kPageBytes, seconds(2));
  const auto old_header = header_of(old_), new_header = header_of(new_);
  open();
  kit_.loop.run_for(seconds(1));
  EXPECT_TRUE(header_of(old_) == old_header);
  EXPECT_TRUE(header_of(new_) == new_header);
  kit_.loop.run_for(seconds(5));
  EXPECT_FALSE(header_of(old_) == old_header);
}

// What does not find a place in the index waits, rather than be written and removed again, or have all looked through
// for each segment.
TEST_F(HalfKnownTest, AFewAtATimeAreGivenUpForAPlaceInTheIndex) {
  constexpr std::uint32_t kMany = 60;
  kit_.options.flash_bytes = kHeadBytes + kMany * kit_.options.segment_bytes;
  open();
  for (std::uint64_t n = 1; kit_.stats().segments_free.value() > 4; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));
  kit_.kill();
  kit_.options.index_records_max = 60;
  for (std::uint32_t s = 0; s < kMany; ++s) kit_.drive().hold_back(kit_.segment_at(s), kPageBytes, seconds(1));
  open();
  for (std::uint64_t n = 1'000; n < 1'020; ++n) static_cast<void>(kit_.put(n));
  kit_.loop.run_for(Millis(900));
  EXPECT_LE(kit_.stats().segments_evicted.value(), 10U);
  for (std::uint64_t n = 1'100; n < 1'500; ++n) EXPECT_TRUE(kit_.put(n, 1, AckLevel::kWritten)) << n;
  EXPECT_EQ(kit_.stats().flash_tombstones.value(), 0U);
}

// Nobody waits for a header that cannot be written: the index takes a part of a segment, so nothing is given up for it.
TEST_F(HalfKnownTest, AHeaderThatCannotBeWrittenKeepsNothingFromBeingWritten) {
  kit_.name_space = namespace_of(1, 3'000);
  kit_.options.index_records_max = 20;
  kit_.options.flash_bytes = kHeadBytes + 12 * kit_.options.segment_bytes;
  kit_.drive().wear_out(io::DiskOp::Kind::kWrite, kit_.segment_at(3), kPageBytes);
  open();
  std::deque<std::optional<Code>> codes;
  for (std::uint64_t n = 0; n < 600; ++n) {
    kit_.start_put(n, codes.emplace_back());
    if (n < 16) continue;
    ASSERT_TRUE(kit_.loop.run_until([&] { return codes.front().has_value(); }, std::chrono::minutes(2)));
    codes.pop_front();
  }
  EXPECT_EQ(kit_.stats().tier_outages.value(), 0U);
  kit_.kill();
}

// What was to be lent to the shrinking, and nothing needs any more, as half-known segments became free before it.
TEST_F(HalfKnownTest, AStoreWithAFreeSegmentBehindItsNewEndCanBeMadeSmaller) {
  kit_.options.flash_bytes = kHeadBytes + 12 * kit_.options.segment_bytes;
  open();
  std::uint64_t last = 0;
  while (kit_.stats().segments_free.value() > 4) ASSERT_TRUE(kit_.put(++last, 1, AckLevel::kSynced));
  kit_.kill();
  for (const std::uint32_t s : {0U, 1U}) {
    std::uint64_t n = last;
    while (kit_.segment_of(n) != s) --n;
    kit_.drive().wear_out(io::DiskOp::Kind::kRead, kit_.segment_at(s + 1) - kPageBytes, 1);
    kit_.drive().wear_out(io::DiskOp::Kind::kRead, kit_.find_on_drive(n).value(), 1);
  }
  kit_.drive().wear_out(io::DiskOp::Kind::kRead, kit_.segment_at(6), kPageBytes);  // doubtful
  kit_.options.flash_bytes = kHeadBytes + 5 * kit_.options.segment_bytes;
  open();
  for (std::uint64_t n = 1'000; n < 1'010; ++n) EXPECT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
}

// More segments than are given up at once: the removed record's turn comes later.
TEST_F(HalfKnownTest, WhatIsRemovedBeforeItsSegmentIsGivenUpForWantOfRoomStaysAway) {
  open();
  for (std::uint64_t n = 1; n <= 30; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));
  ASSERT_EQ(kit_.segment_of(1), 0U);
  kit_.kill();
  kit_.options.index_records_max = 1;
  for (std::uint32_t s = 1; s < kSegments; ++s) kit_.drive().hold_back(kit_.segment_at(s), kPageBytes, seconds(1));
  open();
  kit_.loop.run_for(Millis(200));  // the first ones' content is known
  EXPECT_FALSE(kit_.remove(1)) << "there was no room for it";
  EXPECT_EQ(kit_.await_removals(seconds(60)), Code::kOk);
  start_readable();
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
}

// A newer version of the store may read it again.
TEST_F(HalfKnownTest, WhatIsRemovedBesideASegmentOfANewerVersionStaysAway) {
  open();
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kSynced));
  kit_.close();
  auto page = header_of(0);
  const auto readable = page;
  auto header = load<SegmentHeader>(page.data());
  std::array<std::byte, kPageBytes> superblock{};
  kit_.drive().peek(0, superblock);
  header.features = 8;
  encode_segment_header(page, FormatSeeds(load<Superblock>(superblock.data()).uuid), header, {});
  kit_.drive().poke(kit_.segment_at(0), page);
  open();
  const auto refused = header_of(0);
  EXPECT_FALSE(kit_.remove(1)) << "it is not known";
  EXPECT_EQ(kit_.await_removals(seconds(1)), Code::kOk);
  kit_.kill();
  if (header_of(0) == refused) kit_.drive().poke(kit_.segment_at(0), readable);
  open();
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
}

// The footer cannot be read, and a damaged frame ends the scan before the record.
TEST_F(HalfKnownTest, WhatLiesBehindAFrameThatIsDamagedAndInAFooterThatCannotBeReadStaysRemoved) {
  open();
  put_two_versions();
  kit_.kill();
  kit_.drive().wear_out(io::DiskOp::Kind::kRead, kit_.segment_at(old_ + 1) - kPageBytes, 1);
  const std::uint64_t head = kit_.find_on_drive(2).value() - 2 * kPageBytes;  // its table page, and its frame's
  kit_.drive().flip_bit(head, 3);
  open();
  EXPECT_EQ(kit_.get(1), 1U);
  EXPECT_EQ(kit_.lookup(2), Tier::kNone);
  EXPECT_FALSE(kit_.remove(2)) << "it is not known";
  EXPECT_EQ(kit_.await_removals(seconds(1)), Code::kOk);
  kit_.drive().flip_bit(head, 3);
  kit_.drive().flip_bit(kit_.segment_at(old_ + 1) - 1,
                        3);  // a power loss has the footer forgotten that was written since
  start_readable();
  EXPECT_EQ(kit_.lookup(2), Tier::kNone);
}

// ---- Of several devices ----

// The first segment of the second device is half known; that device goes off before anything is given up.
class HalfKnownDevicesTest : public HalfKnownTest {
 protected:
  HalfKnownDevicesTest() { kit_.add_device(kSegments); }
  void start_and_lose_second() {
    open();
    for (std::uint64_t n = 1; n <= kPut; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));
    kit_.kill();
    std::uint64_t last = kPut;
    while (last > 0 && !lies_in(last, 1, 0)) --last;
    ASSERT_GT(last, 0U);
    kit_.options.index_records_max = kPut;  // what is put more has segments given up, also those that are read
    kit_.drive(1).wear_out(io::DiskOp::Kind::kRead, kit_.segment_at(1) - kPageBytes, 1);
    kit_.drive(1).wear_out(io::DiskOp::Kind::kRead, kit_.find_on_drive(last, 1, 0, 1).value() + 5 * kPageBytes, 1);
    open();
    kit_.drive(1).fail_all(EIO);
    for (std::uint64_t n = 1; !second_is_off(); n = n % kPut + 1) kit_.get(n);
    ASSERT_EQ(kit_.stats().segments_evicted.value(), 0U);
    kit_.drive(1).hold_back(kit_.segment_at(0), kPageBytes, seconds(4));
    half_known_before_ = header_of(0, 1);
  }
  bool lies_in(std::uint64_t number, std::size_t device, std::uint32_t segment) {
    return kit_.find_on_drive(number, 1, 0, device) && kit_.segment_of(number, 1, device) == segment;
  }
  bool second_is_off() { return kit_.store->device_figures()[1].stats->off.value() == 1; }
  // Of the headers of what the first device held.
  std::vector<std::uint64_t> generations() {
    std::vector<std::uint64_t> all;
    for (std::uint32_t s = 0; s < kHeld; ++s) all.push_back(load<SegmentHeader>(header_of(s).data()).generation);
    return all;
  }
  void fill_until_given_up() {
    while (kit_.stats().segments_evicted.value() < 3) {
      ASSERT_LT(next_, 1'200U);
      static_cast<void>(kit_.put(next_++));
      kit_.loop.run_for(Millis(2));
    }
    kit_.loop.run_for(Millis(20));
  }
  // The second device comes back, and what the first has given up waits for what is half known there.
  void expect_order() {
    const auto before = generations();
    kit_.drive(1).fail_all(0);
    ASSERT_TRUE(kit_.loop.run_until([&] { return !second_is_off(); }, seconds(2)));
    ASSERT_EQ(generations(), before);
    for (; header_of(0, 1) == half_known_before_; kit_.loop.run_for(Millis(1))) ASSERT_EQ(generations(), before);
    kit_.loop.run_for(seconds(2));
    EXPECT_NE(generations(), before);
  }

  static constexpr std::uint64_t kPut = 40;
  static constexpr std::uint32_t kHeld = 3;  // segments of the first device
  std::array<std::byte, kPageBytes> half_known_before_{};
};

TEST_F(HalfKnownDevicesTest, WhatWaitsForReadsWaitsForWhatAnotherDeviceBringsBack) {
  start_and_lose_second();
  ManyGets reads(kit_);
  for (std::uint32_t s = 0; s < kSegments; ++s) {
    std::uint64_t number = 1;
    while (number <= kPut && !lies_in(number, 0, s)) ++number;
    if (number > kPut) break;
    kit_.drive(0).hold_back(kit_.find_on_drive(number).value(), kPageBytes, seconds(3));
    reads.ask(number);
  }
  fill_until_given_up();
  EXPECT_FALSE(reads.some_over());
  expect_order();
}

// The first device has no segment to write to, as at first none is known to be free, and nothing to carry.
TEST_F(HalfKnownDevicesTest, WhoeverHasNowhereToWriteWaitsForWhatAnotherDeviceHas) {
  open();
  for (std::uint64_t n = 1; n <= 200; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));
  kit_.kill();
  const auto generation_of = [&](std::uint32_t segment, std::size_t device) {
    return load<SegmentHeader>(header_of(segment, device).data()).generation;
  };
  std::uint32_t oldest = 0;
  for (std::uint32_t s = 0; s < kSegments; ++s) {
    if (generation_of(s, 1) < generation_of(oldest, 1)) oldest = s;
    kit_.drive(0).wear_out(io::DiskOp::Kind::kRead, kit_.segment_at(s) + kPageBytes, 1);  // scanned without a footer
  }
  kit_.drive(1).wear_out(io::DiskOp::Kind::kRead, kit_.segment_at(oldest + 1) - kPageBytes, 1);
  kit_.drive(1).wear_out(io::DiskOp::Kind::kRead, kit_.segment_at(oldest) + 20 * kPageBytes, 1);
  kit_.drive(1).hold_back(kit_.segment_at(oldest), kPageBytes, seconds(4));
  open();
  const std::uint64_t before = generation_of(oldest, 1);
  std::vector<std::uint64_t> first_device(kSegments);
  for (std::uint32_t s = 0; s < kSegments; ++s) first_device[s] = generation_of(s, 0);
  kit_.remove(200);
  std::optional<Code> put;
  kit_.loop.run_for(Millis(10));
  kit_.start_put(1'000, put);  // it asks for a place
  for (; generation_of(oldest, 1) == before; kit_.loop.run_for(Millis(1)))
    for (std::uint32_t s = 0; s < kSegments; ++s) ASSERT_EQ(generation_of(s, 0), first_device[s]) << s;
  EXPECT_EQ(kit_.await_removals(seconds(60)), Code::kOk);
}

TEST_F(HalfKnownDevicesTest, WhatIsTriedAgainWaitsForWhatAnotherDeviceBringsBack) {
  start_and_lose_second();
  for (std::uint32_t s = 0; s < kHeld; ++s)
    kit_.drive(0).wear_out(io::DiskOp::Kind::kWrite, kit_.segment_at(s), kPageBytes);
  fill_until_given_up();
  kit_.drive(0).mend();
  expect_order();
}

}  // namespace
}  // namespace kvd::store
