// What an opening leaves for the next start: which segment is in which use, so that it need not read all headers.
#include "store/use_table.h"

#include <array>
#include <cerrno>
#include <functional>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

Uuid uuid_of(int n) {
  Uuid uuid{};
  uuid[0] = static_cast<std::byte>(n);
  return uuid;
}

TEST(UseTableFormat, BeginsWithItsName) {
  std::vector<std::byte> area(use_table_bytes(1));
  encode_use_table(area, FormatSeeds(uuid_of(1)), 4, std::vector<UseEntry>(1));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(area.data()), 8), "KVDSUSES");
}

TEST(UseTableFormat, IsOfOneStoreOneOpeningAndOneSize) {
  const FormatSeeds seeds(uuid_of(1));
  const std::vector<UseEntry> uses{{7, 5}, {0, 0}, {9, 9}};
  std::vector<std::byte> area(use_table_bytes(3));
  encode_use_table(area, seeds, 4, uses);
  EXPECT_EQ(parse_use_table(area, seeds, 4, 3)->uses, uses);
  EXPECT_FALSE(parse_use_table(area, seeds, 3, 3));
  EXPECT_FALSE(parse_use_table(area, seeds, 5, 3));
  EXPECT_FALSE(parse_use_table(area, seeds, 4, 2));
  EXPECT_FALSE(parse_use_table(area, FormatSeeds(uuid_of(2)), 4, 3));
  for (const std::size_t at : {std::size_t{8}, std::size_t{30}, std::size_t{64}, area.size() - 1}) {
    area[at] ^= std::byte{4};
    EXPECT_FALSE(parse_use_table(area, seeds, 4, 3)) << at;
    area[at] ^= std::byte{4};
  }
}

TEST(ChangeMapFormat, IsOfOneStoreOneOpeningAndOneSize) {
  const FormatSeeds seeds(uuid_of(1));
  SegmentBits changed(segment_words(130));
  changed[0] = 5;
  changed[2] = 2;
  std::vector<std::byte> area(change_map_bytes(130));
  encode_change_map(area, seeds, 4, 7, 130, changed);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(area.data()), 8), "KVDCHNGS");
  EXPECT_EQ(parse_change_map(area, seeds, 4, 130)->changed, changed);
  EXPECT_EQ(parse_change_map(area, seeds, 4, 130)->serial, 7u);
  EXPECT_FALSE(parse_change_map(area, seeds, 3, 130));
  EXPECT_FALSE(parse_change_map(area, seeds, 5, 130));
  EXPECT_FALSE(parse_change_map(area, seeds, 4, 131));
  EXPECT_FALSE(parse_change_map(area, FormatSeeds(uuid_of(2)), 4, 130));
  for (const std::size_t at : {std::size_t{8}, std::size_t{24}, std::size_t{64}, area.size() - 1}) {
    area[at] ^= std::byte{4};
    EXPECT_FALSE(parse_change_map(area, seeds, 4, 130)) << at;
    area[at] ^= std::byte{4};
  }
}

class UseTableTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kSegmentBytes = 64 << 10;
  static constexpr std::uint64_t kSegments = 256;

  UseTableTest() {
    kit_.name_space = namespace_of(1, 64);
    kit_.options.segment_bytes = kSegmentBytes;
    kit_.options.flash_bytes = kHeadBytes + kSegments * kSegmentBytes;
    kit_.options.list_uses = true;
  }
  void put(std::uint64_t first, std::uint64_t end) {
    for (std::uint64_t n = first; n < end; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten)) << n;
  }
  // Opens the store; how many reads that took.
  std::uint64_t open() {
    const std::uint64_t before = kit_.drive().counters().reads;
    EXPECT_TRUE(kit_.open()) << kit_.why;
    return kit_.drive().counters().reads - before;
  }

  // Eight segments, which are used again and again.
  void open_small() {
    kit_.options.flash_bytes = kHeadBytes + 8 * kSegmentBytes;
    kit_.options.index_records_max = 1'024;
    open();
  }
  // Puts records for as long, some forty a second, from `first` on. Returns the next one.
  std::uint64_t write_for(Duration duration, std::uint64_t first = 0) {
    const Time end = after(kit_.loop.now(), duration);
    for (; kit_.loop.now() < end; kit_.loop.run_for(Millis(25))) EXPECT_TRUE(kit_.put(first++, 1, AckLevel::kWritten));
    return first;
  }

  struct NewestHeader {
    std::uint64_t at = 0;
    SegmentHeader header{};
    std::vector<std::uint32_t> recent;
    std::uint64_t unopened = 0;
  };
  // What is on the medium.
  [[nodiscard]] FormatSeeds seeds() {
    std::vector<std::byte> page(kPageBytes);
    kit_.drive().peek(0, page);
    return FormatSeeds(parse_superblock(page, 0)->uuid);
  }
  [[nodiscard]] NewestHeader newest_header() {
    NewestHeader newest;
    std::vector<std::byte> page(kPageBytes);
    for (std::uint32_t s = 0; s < kSegments; ++s) {
      const std::uint64_t at = kHeadBytes + s * kSegmentBytes;
      kit_.drive().peek(at, page);
      const auto header = parse_segment_header(page, seeds(), s);
      if (header && header->generation > newest.header.generation)
        newest = {at, *header, parse_recent(page), parse_unopened(page)};
    }
    return newest;
  }

  StoreKit kit_;
};

TEST_F(UseTableTest, BehindAnOrderlyEndTheHeadersAreNotRead) {
  open();
  put(0, 40);
  kit_.close();
  EXPECT_LT(open(), kSegments / 2);
  for (std::uint64_t n = 0; n < 40; ++n) EXPECT_EQ(kit_.get(n), 1u) << n;
}

TEST_F(UseTableTest, BehindAKillOnlyChangedHeadersAreRead) {
  open();
  put(0, 40);
  for (std::uint64_t again = 0; again < 3; ++again) {
    kit_.kill();
    EXPECT_LT(open(), kSegments / 2);
    for (std::uint64_t n = 0; n < 40; ++n) EXPECT_EQ(kit_.get(n), 1u) << n;
    put(40, 48);
    EXPECT_TRUE(kit_.remove(40 + again));
    kit_.settle();
  }
  kit_.kill();
  kit_.drive().flip_bit(kChangeMapAt + 100, 2);
  EXPECT_GE(open(), kSegments) << "without a map the table means nothing";
  for (std::uint64_t n = 0; n < 48; ++n) EXPECT_EQ(kit_.get(n), n == 42 ? 0u : 1u) << n;
}

// All segments are used again and again: tables and maps follow each other.
TEST_F(UseTableTest, ATableIsWrittenAnewWhenMuchHasChanged) {
  kit_.options.index_records_max = 16'384;
  open();
  std::uint64_t last = 0;
  for (int round = 0; round < 12; ++round) {
    for (int i = 0; i < 150 + 37 * round; ++i) ASSERT_TRUE(kit_.put(++last, 1, AckLevel::kWritten));
    kit_.kill();
    EXPECT_LT(open(), kSegments + kSegments / 4) << "round " << round << ": all footers, and few headers";
    for (std::uint64_t n = last - 20; n <= last; ++n) EXPECT_EQ(kit_.get(n), 1u) << n;
    EXPECT_EQ(kit_.stats().corrupt.value(), 0u);
  }
  EXPECT_GT(kit_.stats().segments_evicted.value(), 0u);
}

TEST_F(UseTableTest, NoHeaderIsWrittenBeforeTheMapTellsOfIt) {
  open();
  put(0, 2);
  kit_.loop.run_for(std::chrono::seconds(1));
  kit_.drive().hold_back(kChangeMapAt, kPageBytes, std::chrono::seconds(1));
  const std::uint64_t before = newest_header().header.generation;
  std::uint64_t n = 2;
  for (; n < 12; ++n) EXPECT_TRUE(kit_.put(n, 1, AckLevel::kPooled));  // into the two segments that are ready
  kit_.loop.run_for(std::chrono::milliseconds(500));
  EXPECT_EQ(newest_header().header.generation, before);
  kit_.drive().hold_back(kChangeMapAt, kPageBytes, Duration::zero());
  kit_.loop.run_for(std::chrono::seconds(2));
  EXPECT_GT(newest_header().header.generation, before);
}

TEST_F(UseTableTest, WhereMapOrTableCannotBeWrittenTheStoreWorksWithoutThem) {
  for (const std::uint64_t at : {kChangeMapAt, kUseTableAt}) {
    kit_.drive().wear_out(io::DiskOp::Kind::kWrite, at, kPageBytes);
    open();
    put(0, 40);
    EXPECT_EQ(kit_.stats().tier_off.value(), 0u);
    kit_.kill();
    const std::uint64_t reads = open();
    EXPECT_TRUE(at == kUseTableAt || reads >= kSegments);  // a write that failed may have reached the medium
    for (std::uint64_t n = 0; n < 40; ++n) EXPECT_EQ(kit_.get(n), 1u) << n;
    kit_.kill();
    kit_.drive().mend();
  }
}

// Of the maps that count from the second table on: the flush behind the first one fails, though a later one makes it
// durable; that behind the second loses it; others come late. So nobody knows which map the medium has.
class MapsFail final : public io::SimObserver {
 public:
  explicit MapsFail(io::SimDrive& drive) : drive_(drive) { drive_.observe(this); }
  ~MapsFail() override {
    drive_.observe(nullptr);
    drive_.hold_back(kChangeMapAt, kPageBytes, Duration::zero());
  }
  void submitted(std::uint64_t id, io::DiskOp::Kind kind, std::uint64_t offset, Bytes bytes) override {
    if (kind != io::DiskOp::Kind::kWrite || offset != kChangeMapAt || load<std::uint64_t>(bytes.data() + 24) < 2)
      return;
    map_ = id;
    ++maps_;
  }
  void completed(std::uint64_t id, io::DiskOp::Kind, bool) override {
    if (id != map_) return;
    if (maps_ == 1) drive_.inject(io::DiskOp::Kind::kSync, 1, io::SimFault::kError, EIO);
    if (maps_ == 2) {
      drive_.inject(io::DiskOp::Kind::kSync, 1, io::SimFault::kForget, EIO);
      drive_.hold_back(kChangeMapAt, kPageBytes, std::chrono::seconds(5));
    }
  }
  [[nodiscard]] bool both_failed() const noexcept { return maps_ >= 2; }

 private:
  io::SimDrive& drive_;
  std::uint64_t map_ = UINT64_MAX;  // the operation that writes the last one
  int maps_ = 0;
};

// Five segments: when a new table is due the map on flash names them all, and the next one the last one only. What the
// next start would believe is compared with the headers.
TEST_F(UseTableTest, AMapThatFailedVouchesForNoMoreThanTheOneBefore) {
  constexpr std::uint32_t kFew = 5;
  kit_.options.flash_bytes = kHeadBytes + kFew * kSegmentBytes;
  kit_.options.index_records_max = 1'024;
  open();
  {
    MapsFail faults(kit_.drive());
    std::array<std::optional<Code>, 100> codes;
    for (std::uint64_t n = 0; !faults.both_failed() && n < codes.size(); ++n) {
      kit_.start_put(n, codes[n], AckLevel::kSynced);  // its flush makes the first map durable
      kit_.loop.run_for(Millis(20));
    }
    ASSERT_TRUE(faults.both_failed());
    kit_.loop.run_for(std::chrono::seconds(3));  // the header is tried again, and the next map has not arrived
    kit_.lose_power(1, 0);
  }
  const auto read = [this](std::uint64_t at, std::size_t bytes) {
    std::vector<std::byte> area(bytes);
    kit_.drive().peek(at, area);
    return area;
  };
  const std::uint64_t epoch = parse_superblock(read(0, kPageBytes), 0)->boot_epoch;
  const auto table = parse_use_table(read(kUseTableAt, use_table_bytes(kFew)), seeds(), epoch, kFew);
  const auto map = parse_change_map(read(kChangeMapAt, change_map_bytes(kFew)), seeds(), epoch, kFew);
  ASSERT_TRUE(table && map && table->serial == 2 && map->serial == 2);
  for (std::uint32_t s = 0; s < kFew; ++s) {
    if (has_bit(map->changed, s)) continue;
    const auto header = parse_segment_header(read(kHeadBytes + s * kSegmentBytes, kPageBytes), seeds(), s);
    EXPECT_EQ(header ? header->generation : 0, table->uses[s].generation) << "segment " << s;
  }
}

// ---- A place of the medium that is worn out ----

TEST_F(UseTableTest, ATableThatCannotBeWrittenIsTriedAgainLaterAndLater) {
  open_small();
  const auto serial = [this] {
    std::array<std::byte, 8> bytes{};
    kit_.drive().peek(kUseTableAt + 24, bytes);
    return load<std::uint64_t>(bytes.data());
  };
  const std::uint64_t before = serial();
  kit_.drive().wear_out(io::DiskOp::Kind::kWrite, kUseTableAt, kPageBytes);
  const std::uint64_t last = write_for(std::chrono::minutes(10));
  EXPECT_EQ(kit_.stats().tier_outages.value(), 0u);
  EXPECT_EQ(kit_.drive().faults(), 4u) << "at once, and after 1, 3 and 7 minutes";
  kit_.drive().mend();
  write_for(std::chrono::minutes(10), last);
  EXPECT_GT(serial(), before + 10) << "there are some again";
}

TEST_F(UseTableTest, AMapThatCannotBeWrittenIsDoneWithout) {
  open_small();
  write_for(std::chrono::seconds(10));
  kit_.drive().wear_out(io::DiskOp::Kind::kWrite, kChangeMapAt, kPageBytes);
  const std::uint64_t last = write_for(std::chrono::seconds(30), 10'000);
  EXPECT_EQ(kit_.stats().tier_outages.value(), 0u);
  EXPECT_EQ(kit_.drive().faults(), 1u);
  EXPECT_EQ(kit_.log.count("the map of changes cannot be written"), 1u);
  kit_.kill();
  open();
  for (std::uint64_t n = last - 8; n < last; ++n) EXPECT_EQ(kit_.get(n), 1u) << n;
}

// Counts the writes that begin at one place.
class WritesAt final : public io::SimObserver {
 public:
  WritesAt(io::SimDrive& drive, std::uint64_t offset, std::function<void()> on_done = {})
      : drive_(drive), offset_(offset), on_done_(std::move(on_done)) {
    drive_.observe(this);
  }
  ~WritesAt() override { drive_.observe(nullptr); }
  void submitted(std::uint64_t id, io::DiskOp::Kind kind, std::uint64_t offset, Bytes) override {
    if (kind != io::DiskOp::Kind::kWrite || offset != offset_) return;
    ++count_;
    last_ = id;
  }
  void completed(std::uint64_t id, io::DiskOp::Kind, bool) override {
    if (id == last_ && on_done_) on_done_();
  }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

 private:
  io::SimDrive& drive_;
  const std::uint64_t offset_;
  const std::function<void()> on_done_;
  std::uint64_t count_ = 0, last_ = UINT64_MAX;
};

TEST_F(UseTableTest, ATableCountsAsVoidBehindAFlush) {
  open_small();
  write_for(std::chrono::seconds(10));
  kit_.drive().wear_out(io::DiskOp::Kind::kWrite, kChangeMapAt, kPageBytes);
  const WritesAt tables(kit_.drive(), kUseTableAt, [this] {
    if (kit_.drive().faults() == 1) kit_.drive().inject(io::DiskOp::Kind::kSync, 1, io::SimFault::kForget, EIO);
  });
  write_for(std::chrono::seconds(10), 10'000);
  EXPECT_EQ(kit_.drive().faults(), 3u) << "the map, the flush, the map again";
  EXPECT_EQ(kit_.log.count("the map of changes cannot be written"), 1u);
  EXPECT_EQ(kit_.stats().tier_outages.value(), 0u);
}

// The table on flash tells of old uses: it has to be void before a header is written that no map tells of, also one
// that is being written meanwhile.
TEST_F(UseTableTest, NoHeaderIsWrittenWithoutAMapBeforeTheTableIsVoid) {
  for (const bool table_runs : {false, true}) {
    kit_.options.demote_idle = Millis(5);
    open_small();
    std::uint64_t n = write_for(std::chrono::seconds(10));
    const auto generation = [this] { return newest_header().header.generation; };
    const auto put_until = [&](const std::function<bool()>& there) {
      for (const std::uint64_t end = n + 100; !there() && n < end; kit_.loop.run_for(Millis(20)))
        EXPECT_TRUE(kit_.put(n++));
      EXPECT_TRUE(there());
    };
    const std::uint64_t faults = kit_.drive().faults();
    kit_.drive().hold_back(kUseTableAt, kPageBytes, std::chrono::seconds(4));
    const WritesAt tables(kit_.drive(), kUseTableAt);
    put_until([&] { return !table_runs || tables.count() > 0; });
    kit_.drive().wear_out(io::DiskOp::Kind::kWrite, kChangeMapAt, kPageBytes);
    put_until([&] { return kit_.drive().faults() > faults; });
    const std::uint64_t failed_at = generation();
    for (int i = 0; i < 10; ++i, kit_.loop.run_for(Millis(100))) EXPECT_TRUE(kit_.put(n++));
    EXPECT_EQ(generation(), failed_at);
    kit_.loop.run_for(std::chrono::seconds(8));
    EXPECT_GT(generation(), failed_at);
    std::array<std::byte, 8> magic{};
    kit_.drive().peek(kUseTableAt, magic);
    EXPECT_EQ(load<std::uint64_t>(magic.data()), 0u);
    kit_.kill();
    kit_.drive().hold_back(kUseTableAt, kPageBytes, Duration::zero());
    kit_.drive().mend();
  }
}

TEST_F(UseTableTest, IsBelievedOnce) {
  open();
  put(0, 10);
  kit_.close();
  open();
  put(10, 20);
  EXPECT_TRUE(kit_.remove(3));
  kit_.settle();
  kit_.kill();
  for (int again = 0; again < 2; ++again) {
    open();
    for (std::uint64_t n = 0; n < 20; ++n) EXPECT_EQ(kit_.get(n), n == 3 ? 0u : 1u) << n;
    kit_.kill();
  }
}

TEST_F(UseTableTest, NothingIsWrittenBehindIt) {
  open();
  put(0, 10);
  bool drained = false;
  kit_.store->drain(after(kit_.loop.now(), std::chrono::seconds(10)), [&] { drained = true; });
  ASSERT_TRUE(kit_.loop.run_until([&] { return drained; }, std::chrono::seconds(20)));
  const std::uint64_t writes = kit_.drive().counters().writes;
  EXPECT_TRUE(kit_.remove(3));
  std::optional<Status> removed;
  kit_.store->await_removals([&](Status status) { removed = status; });
  kit_.loop.run_for(std::chrono::seconds(30));
  EXPECT_TRUE(!removed || !*removed) << "it is not on flash";
  EXPECT_EQ(kit_.drive().counters().writes, writes);
  kit_.store.reset();
  EXPECT_LT(open(), kSegments / 2);
  EXPECT_EQ(kit_.get(3), 1u);
}

TEST_F(UseTableTest, OneThatIsDamagedOrOfAnotherSizeIsPassedOver) {
  open();
  put(0, 10);
  kit_.close();
  kit_.drive().flip_bit(kUseTableAt + 100, 2);
  EXPECT_GE(open(), kSegments);
  EXPECT_EQ(kit_.get(3), 1u);
  kit_.close();
  kit_.options.flash_bytes += 8 * kSegmentBytes;
  EXPECT_GE(open(), kSegments);
  EXPECT_EQ(kit_.get(3), 1u);
  kit_.close();
  EXPECT_LT(open(), kSegments / 2);
  kit_.close();
  kit_.options.flash_bytes -= 16 * kSegmentBytes;
  open();
  EXPECT_EQ(kit_.get(3), 1u);
  kit_.close();
  EXPECT_LT(open(), kSegments / 2) << "the table is of the smaller store";
  EXPECT_EQ(kit_.get(3), 1u);
}

// A table whose newest use is not what its header says was not left by the opening that wrote the header.
TEST_F(UseTableTest, TheNewestHeaderHasToAgree) {
  open();
  put(0, 40);
  kit_.close();
  const auto open_with = [&](const std::function<void(NewestHeader&)>& change) {
    NewestHeader newest = newest_header();
    change(newest);
    std::vector<std::byte> page(kPageBytes);
    encode_segment_header(page, seeds(), newest.header, newest.recent, newest.unopened);
    kit_.drive().poke(newest.at, page);
    const std::uint64_t reads = open();
    for (std::uint64_t n = 0; n < 40; ++n) EXPECT_EQ(kit_.get(n), 1u) << n;
    kit_.close();
    return reads;
  };
  EXPECT_LT(open_with([](NewestHeader&) {}), kSegments / 2);
  EXPECT_GE(open_with([](NewestHeader& newest) { newest.header.generation += 1; }), kSegments);
  EXPECT_GE(open_with([](NewestHeader& newest) { newest.unopened -= 1; }), kSegments);
  EXPECT_GE(open_with([](NewestHeader& newest) { newest.header.magic = 0; }), kSegments);
  EXPECT_LT(open_with([](NewestHeader&) {}), kSegments / 2) << "behind each of them there is a table again";
}

TEST_F(UseTableTest, DoesNotTellOfHeadersThatCouldNotBeRead) {
  open();
  put(0, 10);
  kit_.kill();
  kit_.drive().flip_bit(kUseTableAt + 100, 2);
  kit_.drive().wear_out(io::DiskOp::Kind::kRead, kHeadBytes + 200 * kSegmentBytes, kPageBytes);
  open();
  kit_.close();
  kit_.drive().mend();
  EXPECT_GE(open(), kSegments) << "it may be readable again";
}

// Segments are given up all the time; whichever are on their way when it ends, the next start finds what is there.
TEST_F(UseTableTest, TellsOfSegmentsThatAreGivenUpTowardsTheEnd) {
  kit_.options.flash_bytes = kHeadBytes + 8 * kSegmentBytes;
  kit_.options.index_records_max = 1'024;
  open();
  std::uint64_t last = 0;
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 5 + round; ++i) ASSERT_TRUE(kit_.put(++last, 1, AckLevel::kWritten));
    kit_.close();
    kit_.options.list_uses = round % 3 != 2;
    open();
    EXPECT_EQ(kit_.get(last), 1u) << "round " << round;
    EXPECT_EQ(kit_.get(last - 4), 1u) << "round " << round;
    EXPECT_EQ(kit_.stats().corrupt.value(), 0u);
  }
  EXPECT_GT(last, 8u * 8u);
}

}  // namespace
}  // namespace kvd::store
