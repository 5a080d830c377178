// Tests of opening stores of many segments and of many records in one, of asking a store while it recovers, and of
// lookups of many records at once.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "store/flash_health.h"
#include "store/footer_reader.h"
#include "store/format.h"
#include "store/segment_scan.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

// Small records with foreign keys: 2 pages each.
void use_small_records(StoreKit& kit, std::uint64_t segment_bytes, std::uint64_t segments) {
  kit.name_space = namespace_of(1, 64);
  kit.options.segment_bytes = segment_bytes;
  kit.options.flash_bytes = kHeadBytes + segments * segment_bytes;
  kit.options.index_records_max = 8'192;
}

void put_all(StoreKit& kit, std::uint64_t records) {
  for (std::uint64_t n = 0; n < records; ++n) ASSERT_TRUE(kit.put(n, 1, AckLevel::kWritten)) << n;
}

TEST(StoreRecovery, FootersLongerThanOneReadAreReadWhole) {
  StoreKit kit;
  use_small_records(kit, 8 << 20, 6);
  constexpr std::uint64_t kRecords = 1'900;  // three segments of some 600: each is a frame of its own
  ASSERT_TRUE(kit.open()) << kit.why;
  put_all(kit, kRecords);
  ASSERT_TRUE(kit.reopen()) << kit.why;
  static_assert(footer_bytes(1, 1, 600) > FooterReader::kTailBytes);
  EXPECT_EQ(kit.stats().recovered_records.value(), kRecords);
  EXPECT_EQ(kit.stats().recovered_dropped.value(), 0u);
  for (std::uint64_t n = 0; n < kRecords; n += 31) EXPECT_EQ(kit.get(n), 1u) << n;
}

TEST(StoreRecovery, MoreSegmentsThanAreReadAhead) {
  StoreKit kit;
  constexpr std::uint64_t kSegments = 3 * FooterReader::kAhead;
  use_small_records(kit, 64 << 10, kSegments);
  ASSERT_TRUE(kit.open()) << kit.why;
  constexpr std::uint64_t kRecords = kSegments * 2;  // of four that fit into one
  put_all(kit, kRecords);
  ASSERT_TRUE(kit.reopen()) << kit.why;
  EXPECT_EQ(kit.stats().recovered_records.value(), kRecords);
  for (std::uint64_t n = 0; n < kRecords; n += 7) EXPECT_EQ(kit.get(n), 1u) << n;
}

TEST(StoreRecovery, NewerCopyWinsAlsoWhereSegmentsOverlap) {
  StoreKit kit;
  use_small_records(kit, 64 << 10, 16);
  ASSERT_TRUE(kit.open()) << kit.why;
  for (std::uint64_t version = 1; version <= 6; ++version) {
    for (std::uint64_t n = 0; n < 8; ++n) {
      kit.remove(n);
      ASSERT_TRUE(kit.put(n, version, AckLevel::kWritten));
    }
  }
  kit.remove(3);
  ASSERT_TRUE(kit.reopen()) << kit.why;
  for (std::uint64_t n = 0; n < 8; ++n) EXPECT_EQ(kit.get(n), n == 3 ? 0u : 6u) << n;
}

// Its reads wait for one another, and nothing else is under way meanwhile.
TEST(StoreRecovery, ALongScanIsNotTakenForADeviceThatHangs) {
  StoreKit kit;
  use_small_records(kit, 1 << 20, 6);
  constexpr std::uint64_t kRecords = 50;
  ASSERT_TRUE(kit.open()) << kit.why;
  put_all(kit, kRecords);
  kit.kill();
  kit.drive().hold_back(kHeadBytes, 6 << 20, Millis(500));
  const Time began = kit.loop.now();
  ASSERT_TRUE(kit.open()) << kit.why;
  EXPECT_GT(kit.loop.now() - began, 2 * FlashHealth::kStallMax);
  EXPECT_EQ(kit.stats().tier_off.value(), 0u);
  kit.drive().hold_back(kHeadBytes, 6 << 20, Duration::zero());
  for (std::uint64_t n = 0; n < kRecords; ++n) EXPECT_EQ(kit.get(n), 1u) << n;
}

// Two that share a schema, and one with two schemas.
TEST(StoreRecovery, NamespacesAndSchemasOfOneSegmentAreToldApart) {
  StoreKit kit;
  kit.name_space.groups.push_back(kit.name_space.groups[0]);
  kit.name_space.groups[1].group = 1;
  kit.name_space.groups[1].slab_bytes = 3'000;
  ASSERT_TRUE(kit.open()) << kit.why;
  Namespace other = kit.name_space;
  other.fingerprint = "other";
  const NamespaceHandle first = kit.ns, second = *kit.store->open_namespace(other);
  for (const NamespaceHandle ns : {first, second}) {
    kit.ns = ns;
    ASSERT_TRUE(kit.put(ns == first ? 1 : 2, 1, AckLevel::kWritten));
  }
  auto put = kit.store->begin_put(second, id_of(3, 1), foreign_of(3));
  ASSERT_TRUE(put && *put);
  std::vector<std::uint64_t> checksums;
  for (std::uint16_t layer = 0; layer < 4; ++layer) {
    fill_slab(put->slab(layer), 3, 1, layer);
    checksums.push_back(block::slab_checksum(put->seed(), layer, put->slab(layer)));
  }
  kit.store->complete_put(std::move(*put), checksums, AckLevel::kPooled, [](Status) {});
  ASSERT_TRUE(kit.reopen()) << kit.why;
  Namespace wrong = other;
  wrong.groups[1].slab_bytes = 2'000;
  EXPECT_FALSE(kit.store->open_namespace(wrong)) << "flash holds records of the second group";
  EXPECT_EQ(kit.get(1), 1u);
  EXPECT_EQ(kit.get(2), 0u);
  kit.ns = *kit.store->open_namespace(other);
  EXPECT_EQ(kit.get(1), 0u);
  EXPECT_EQ(kit.get(2), 1u);
  EXPECT_EQ(kit.store->lookup(kit.ns, id_of(3, 1)), Tier::kFlash);
}

TEST(StoreRecovery, LookupsTogetherSayWhatLookupsSay) {
  StoreKit kit;
  use_small_records(kit, 64 << 10, 32);
  ASSERT_TRUE(kit.open()) << kit.why;
  put_all(kit, 60);
  ASSERT_TRUE(kit.reopen()) << kit.why;
  for (std::uint64_t n = 0; n < 60; n += 3) ASSERT_EQ(kit.get(n), 1u);  // into the pool
  std::vector<block::RecordId> ids;
  for (std::uint64_t n = 0; n < 100; ++n) ids.push_back(id_of(n, n == 50 ? 7 : 0));  // absent from 60 on; no group 7
  std::vector<Tier> tiers(ids.size(), Tier::kNone);
  kit.store->lookup_all(kit.ns, ids, tiers);
  for (std::uint64_t n = 0; n < ids.size(); ++n) EXPECT_EQ(tiers[n], kit.store->lookup(kit.ns, ids[n])) << n;
  EXPECT_EQ(tiers[0], Tier::kPool);
  EXPECT_EQ(tiers[1], Tier::kFlash);
  EXPECT_EQ(tiers[50], Tier::kNone);
  EXPECT_EQ(tiers[60], Tier::kNone);
}

// A store of many small segments that is asked while it recovers: what a get yields then, and when.
class WhileRecoveringTest : public ::testing::Test {
 protected:
  WhileRecoveringTest() {
    use_small_records(kit_, kSegmentBytes, 32);
    kit_.options.recover_later = true;
  }
  void open() { ASSERT_TRUE(kit_.open()) << kit_.why; }
  // The segment in which a record was written last, by the frames that the drive holds.
  std::uint32_t segment_of(std::uint64_t number) {
    std::uint32_t found = UINT32_MAX;
    std::uint64_t newest = 0;
    const FormatSeeds seeds(kit_.store->uuid());
    std::array<std::byte, kPageBytes> page{};
    for (std::uint32_t s = 0; s < 32; ++s) {
      kit_.drive().peek(at(s), page);
      const auto header = parse_segment_header(page, seeds, s);
      if (!header) continue;
      SegmentContent content;
      const ReadSegment read = [&](std::uint64_t offset, MutableBytes to) {
        kit_.drive().peek(at(s) + offset, to);
        return Status{};
      };
      walk_frames(read, seeds, {s, header->generation, kSegmentBytes}, UINT32_MAX, content,
                  [](const FrameHead&, std::uint32_t, std::size_t) {});
      for (const Descriptor& d : content.descriptors) {
        if (d.tombstone() || d.key_lo != number || d.put_seq < newest) continue;
        newest = d.put_seq;
        found = s;
      }
    }
    return found;
  }
  static std::uint64_t at(std::uint32_t segment) { return kHeadBytes + segment * kSegmentBytes; }
  // What is read of the footer of this segment comes late.
  void hold_back_footer(std::uint32_t segment, Duration extra) {
    kit_.drive().hold_back(at(segment + 1) - kPageBytes, kPageBytes, extra);
  }
  // Asks for records while the store recovers; the version found of each, 0 for a miss, and when it was there.
  struct Asked {
    std::uint64_t version = 0;
    Time at = kNever;
  };
  void ask(const std::vector<std::uint64_t>& numbers) {
    kit_.meanwhile = [this, numbers] {
      for (const std::uint64_t n : numbers)
        if (!gets_.contains(n) && kit_.lookup(n) != Tier::kNone) start(n);
    };
  }
  void start(std::uint64_t n) {
    auto asked = std::make_unique<Pending>();
    asked->foreign = foreign_of(n);
    asked->get.ns = kit_.ns;
    asked->get.id = id_of(n);
    asked->get.foreign = asked->foreign;
    asked->get.on_done = [this, n](Result<RecordView> view) {
      if (!view) return;
      found_[n].at = kit_.loop.now();
      for (std::uint64_t version = 1; version <= 8 && found_[n].version == 0; ++version)
        if (slab_is({view->first_slab, 64}, n, version, 0)) found_[n].version = version;
    };
    gets_[n] = std::move(asked);
    kit_.store->start_get(gets_[n]->get);
  }
  void reopen_asking(const std::vector<std::uint64_t>& numbers) {
    ask(numbers);
    began_ = kit_.loop.now();
    ASSERT_TRUE(kit_.open()) << kit_.why;
    kit_.meanwhile = {};
  }

  static constexpr std::uint64_t kSegmentBytes = 64 << 10;
  struct Pending {
    Get get;
    std::vector<std::byte> foreign;
  };
  StoreKit kit_;
  std::map<std::uint64_t, std::unique_ptr<Pending>> gets_;
  std::map<std::uint64_t, Asked> found_;
  Time began_{};
};

TEST_F(WhileRecoveringTest, TheNewestSegmentIsServedWhileOldFootersAreStillToCome) {
  open();
  put_all(kit_, 40);
  kit_.settle();
  const std::uint32_t oldest = segment_of(0);
  kit_.close();
  hold_back_footer(oldest, std::chrono::seconds(3));
  reopen_asking({0, 39});
  EXPECT_EQ(found_[39].version, 1u);
  EXPECT_LT(found_[39].at, after(began_, Millis(10)));
  EXPECT_EQ(found_.contains(0), false) << "it was found before its segment was read";
  EXPECT_GE(kit_.loop.now(), after(began_, std::chrono::seconds(3)));
  EXPECT_EQ(kit_.stats().recovering.value(), 0u);
  EXPECT_EQ(kit_.stats().recovery_percent.value(), 100u);
  for (std::uint64_t n = 0; n < 40; ++n) EXPECT_EQ(kit_.get(n), 1u) << n;
}

TEST_F(WhileRecoveringTest, WhatIsRemovedIsNotGivenOutBeforeItsTombstoneIsApplied) {
  open();
  put_all(kit_, 40);
  kit_.settle();
  const std::uint32_t oldest = segment_of(0);
  kit_.remove(38);
  kit_.remove(39);
  kit_.settle();
  kit_.close();
  hold_back_footer(oldest, std::chrono::seconds(3));
  reopen_asking({36, 38, 39});
  EXPECT_EQ(found_[36].version, 1u);
  EXPECT_LT(found_[36].at, after(began_, Millis(10)));
  EXPECT_FALSE(found_.contains(38));
  EXPECT_FALSE(found_.contains(39));
  EXPECT_EQ(kit_.get(39), 0u);
}

TEST_F(WhileRecoveringTest, OfTwoCopiesNeverTheOlder) {
  open();
  put_all(kit_, 40);
  for (std::uint64_t n = 0; n < 3; ++n) ASSERT_TRUE(kit_.replace(n, 2, AckLevel::kWritten));
  kit_.settle();
  const std::uint32_t newest = segment_of(2), middle = segment_of(20);
  kit_.close();
  hold_back_footer(newest, std::chrono::seconds(1));
  hold_back_footer(middle, std::chrono::seconds(3));
  reopen_asking({0, 1, 2, 39});
  for (std::uint64_t n = 0; n < 3; ++n) EXPECT_EQ(found_[n].version, 2u) << n;
  EXPECT_GE(found_[39].at, after(began_, std::chrono::seconds(1))) << "before what may contradict it was read";
  EXPECT_LT(found_[39].at, after(began_, std::chrono::seconds(2)));
}

// Headers that are in flight together may end in the other order: then the segment that was opened later has the lower
// generation, and is read after the other.
TEST_F(WhileRecoveringTest, AnOlderHeaderMayBelongToTheSegmentThatWasOpenedLater) {
  kit_.drive().hold_back(at(0), kPageBytes, Millis(5));
  open();
  kit_.drive().hold_back(at(0), kPageBytes, Duration::zero());
  put_all(kit_, 3);
  for (std::uint64_t n = 10; segment_of(0) == segment_of(2); ++n) {
    ASSERT_LT(n, 20u);
    ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
    ASSERT_TRUE(kit_.replace(2, 1, AckLevel::kWritten));
  }
  ASSERT_EQ(segment_of(0), 1u);
  ASSERT_EQ(segment_of(2), 0u);
  ASSERT_TRUE(kit_.replace(0, 2, AckLevel::kWritten));
  kit_.remove(1);
  kit_.settle();
  kit_.close();
  hold_back_footer(0, std::chrono::seconds(3));
  reopen_asking({0, 1, 10});
  EXPECT_EQ(found_[0].version, 2u);
  EXPECT_FALSE(found_.contains(1));
  EXPECT_GE(found_[10].at, after(began_, std::chrono::seconds(3)));
}

TEST_F(WhileRecoveringTest, NothingIsTakenAndNothingWritten) {
  open();
  put_all(kit_, 40);
  kit_.close();
  hold_back_footer(0, std::chrono::seconds(1));
  std::uint64_t asked = 0;
  kit_.meanwhile = [&] {
    if (!kit_.store->recovering() || kit_.ns == StoreKit::kNotOpen) return;
    ++asked;
    EXPECT_EQ(kit_.store->begin_put(kit_.ns, id_of(39), foreign_of(39)).error().code, Code::kBusy);
    EXPECT_EQ(kit_.store->begin_replacement(kit_.ns, id_of(99), foreign_of(99)).error().code, Code::kBusy);
    EXPECT_EQ(kit_.stats().flash_bytes_written.value(), 0u);
    EXPECT_EQ(kit_.stats().segments_evicted.value(), 0u);
    EXPECT_LT(kit_.stats().recovery_percent.value(), 100u);
  };
  ASSERT_TRUE(kit_.open()) << kit_.why;
  EXPECT_GT(asked, 100u);
  kit_.meanwhile = {};
  EXPECT_TRUE(kit_.put(99, 1, AckLevel::kWritten));
  EXPECT_TRUE(kit_.remove(39));
  EXPECT_EQ(kit_.get(39), 0u);
}

// Nothing of flash is served any more then, so that nothing has to wait for it.
TEST_F(WhileRecoveringTest, ThePoolServesThoughTheDeviceHangs) {
  open();
  put_all(kit_, 40);
  kit_.settle();
  const std::uint32_t oldest = segment_of(0);
  kit_.close();
  hold_back_footer(oldest, std::chrono::seconds(25));
  Namespace unheard = kit_.name_space;
  unheard.fingerprint = "another model";
  std::optional<Code> put;
  kit_.meanwhile = [&] {
    if (put || kit_.stats().tier_off.value() == 0 || kit_.store->recovering()) return;
    EXPECT_EQ(kit_.stats().recovering.value(), 1u) << "its end is not waited for";
    EXPECT_TRUE(kit_.store->open_namespace(unheard));
    EXPECT_FALSE(kit_.remove(98));
    kit_.start_put(99, put, AckLevel::kPooled);
  };
  began_ = kit_.loop.now();
  ASSERT_TRUE(kit_.open()) << kit_.why;
  kit_.meanwhile = {};
  EXPECT_GE(kit_.loop.now(), after(began_, std::chrono::seconds(25)));
  EXPECT_EQ(put, Code::kOk);
  EXPECT_EQ(kit_.get(99), 1u);
  EXPECT_EQ(kit_.lookup(39), Tier::kNone);
  hold_back_footer(oldest, Duration::zero());
  kit_.kill();
  open();
  for (std::uint64_t n = 0; n < 40; ++n) EXPECT_EQ(kit_.get(n), 1u) << n;
}

// The first read hangs, so that nothing is told before the tier goes off, and what is opened then does not agree with
// what lies on flash.
TEST_F(WhileRecoveringTest, WhatIsOpenedWhileTheDeviceHangsCostsNothingOnFlash) {
  open();
  put_all(kit_, 40);
  kit_.close();
  kit_.drive().hold_back(kUseTableAt, kPageBytes, std::chrono::seconds(15));
  const Namespace before = kit_.name_space;
  kit_.name_space.groups[0].slab_bytes *= 2;
  kit_.meanwhile = [] {};
  open();
  kit_.meanwhile = {};
  EXPECT_EQ(kit_.stats().tier_off.value(), 1u);
  EXPECT_TRUE(kit_.put(39, 2));
  EXPECT_EQ(kit_.get(39), 2u);
  kit_.loop.run_for(Millis(100));
  EXPECT_EQ(kit_.stats().segments_evicted.value(), 0u);
  kit_.drive().hold_back(kUseTableAt, kPageBytes, Duration::zero());
  kit_.name_space = before;
  kit_.kill();
  open();
  for (std::uint64_t n = 0; n < 40; ++n) EXPECT_EQ(kit_.get(n), 1u) << n;
}

TEST_F(WhileRecoveringTest, ANamespaceIsOpenedOnlyWhenFlashHasToldOfIt) {
  open();
  put_all(kit_, 40);
  kit_.settle();
  const std::uint32_t oldest = segment_of(0), newest = segment_of(39);
  kit_.close();
  Namespace other = kit_.name_space, unheard = kit_.name_space;
  other.groups[0].slab_bytes *= 2;
  unheard.fingerprint = "another model";
  std::uint64_t asked = 0;
  Time opened = kNever;
  hold_back_footer(newest, std::chrono::seconds(1));
  hold_back_footer(oldest, std::chrono::seconds(2));
  kit_.meanwhile = [&] {
    if (!kit_.store->recovering()) return;
    const bool told = kit_.ns != StoreKit::kNotOpen;
    if (told && opened == kNever) opened = kit_.loop.now();
    EXPECT_EQ(kit_.store->open_namespace(other).error().code, told ? Code::kInvalid : Code::kUnavailable);
    EXPECT_EQ(kit_.store->open_namespace(unheard).error().code, Code::kUnavailable);
    asked += told ? 1 : 0;
  };
  began_ = kit_.loop.now();
  ASSERT_TRUE(kit_.open()) << kit_.why;
  EXPECT_GE(opened, after(began_, std::chrono::seconds(1)));
  EXPECT_LT(opened, after(began_, Millis(1'100)));
  EXPECT_GT(asked, 100u);
  kit_.meanwhile = {};
  EXPECT_TRUE(kit_.store->open_namespace(unheard));
  EXPECT_EQ(kit_.get(39), 1u);
}

// A segment whose header is lost counts as free, so its namespace may be stored with another schema. When it can
// be read again there are two.
TEST_F(WhileRecoveringTest, OfTwoSchemasTheNewerCountsAndTheOlderSegmentGoes) {
  open();
  put_all(kit_, 40);
  kit_.settle();
  const std::uint32_t old = segment_of(39);
  ASSERT_GT(old, 4u);
  kit_.close();
  std::vector<std::byte> kept(kSegmentBytes), nothing(kPageBytes);
  kit_.drive().peek(at(old), kept);
  for (std::uint32_t s = 0; s < 32; ++s) kit_.drive().poke(at(s), nothing);
  const Namespace before = kit_.name_space;
  kit_.name_space.groups[0].slab_bytes *= 2;  // records are as large as before
  open();
  for (std::uint64_t n = 0; n < 3; ++n) ASSERT_TRUE(kit_.put(n, 2, AckLevel::kWritten));
  kit_.close();
  kit_.drive().poke(at(old), kept);
  hold_back_footer(old, std::chrono::seconds(1));
  reopen_asking({0, 39});
  EXPECT_EQ(found_[0].version, 2u);
  EXPECT_LT(found_[0].at, after(began_, Millis(100))) << "nothing that is told later can change it";
  EXPECT_FALSE(gets_.contains(39));
  EXPECT_EQ(kit_.store->open_namespace(before).error().code, Code::kInvalid);
  EXPECT_EQ(kit_.lookup(39), Tier::kNone);
  ASSERT_TRUE(kit_.put(39, 3, AckLevel::kWritten));
  kit_.loop.run_for(Millis(100));
  EXPECT_EQ(kit_.stats().segments_evicted.value(), 1u);
  ASSERT_TRUE(kit_.reopen()) << kit_.why;
  EXPECT_EQ(kit_.get(39), 3u);
  EXPECT_EQ(kit_.get(1), 2u);
}

TEST_F(WhileRecoveringTest, ADrainEndsIt) {
  open();
  put_all(kit_, 40);
  kit_.close();
  hold_back_footer(0, std::chrono::seconds(1));
  bool begun = false;
  kit_.meanwhile = [&] {
    if (!std::exchange(begun, true)) kit_.store->drain(after(kit_.loop.now(), Millis(100)), [] {});
  };
  const Status opened = kit_.open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kCancelled);
  kit_.meanwhile = {};
  hold_back_footer(0, Duration::zero());
  open();
  for (std::uint64_t n = 0; n < 40; ++n) EXPECT_EQ(kit_.get(n), 1u) << n;
}

TEST_F(WhileRecoveringTest, ADrainEndsShrinkingToo) {
  open();
  put_all(kit_, 40);
  kit_.settle();
  ASSERT_GT(segment_of(39), 7u);
  kit_.close();
  kit_.options.flash_bytes = kHeadBytes + 6 * kSegmentBytes;
  const auto hold_back_headers = [&](Duration extra) {
    for (std::uint32_t s = 6; s < 32; ++s) kit_.drive().hold_back(at(s), kPageBytes, extra);
  };
  hold_back_headers(std::chrono::seconds(3));
  Time asked = kNever, last = kNever;
  kit_.meanwhile = [&] {
    last = kit_.loop.now();
    if (kit_.stats().recovery_percent.value() < 99 || asked != kNever) return;
    asked = last;
    kit_.store->drain(after(asked, std::chrono::seconds(20)), [] {});
  };
  EXPECT_EQ(kit_.open().error().code, Code::kCancelled);
  EXPECT_NE(asked, kNever);
  EXPECT_LT(last, after(asked, Millis(100)));
  kit_.meanwhile = {};
  hold_back_headers(Duration::zero());
  open();
  EXPECT_EQ(kit_.log.count("shrinking"), 2u) << "the next start has gone on with it";
  EXPECT_TRUE(kit_.put(99, 1, AckLevel::kWritten));
}

// Is ready as long as everything is read and tombstones are applied, so it counts the loop's turns in that time.
class TurnsAtTheEnd final : public io::Polled {
 public:
  explicit TurnsAtTheEnd(StoreKit& kit) : kit_(kit) { kit_.loop.add(*this); }
  ~TurnsAtTheEnd() override { kit_.loop.remove(*this); }
  [[nodiscard]] bool ready() override {
    return kit_.store != nullptr && kit_.stats().recovering.value() > 0 && kit_.stats().recovery_percent.value() == 99;
  }
  void before_sleep() override {}
  void after_sleep() override {}
  void run() override { ++count; }
  std::uint64_t count = 0;

 private:
  StoreKit& kit_;
};

TEST(StoreRecovery, TombstonesAreAppliedInManyTurnsOfTheLoop) {
  StoreKit kit;
  use_small_records(kit, 8 << 20, 12);
  constexpr std::uint64_t kRecords = 5'000;
  ASSERT_TRUE(kit.open()) << kit.why;
  put_all(kit, kRecords);
  for (std::uint64_t n = 1; n < kRecords; ++n) EXPECT_TRUE(kit.remove(n)) << n;
  kit.settle();
  kit.close();
  kit.options.recover_later = true;
  TurnsAtTheEnd turns(kit);
  ASSERT_TRUE(kit.open()) << kit.why;
  EXPECT_GE(turns.count, 4u);
  EXPECT_EQ(kit.stats().recovered_records.value(), 1u);
  EXPECT_EQ(kit.get(0), 1u);
  for (std::uint64_t n = 1; n < kRecords; ++n) ASSERT_EQ(kit.lookup(n), Tier::kNone) << n;
}

TEST(StoreRecovery, TombstonesAreCounted) {
  StoreKit kit;
  ASSERT_TRUE(kit.open()) << kit.why;
  for (std::uint64_t n = 0; n < 12; ++n) ASSERT_TRUE(kit.put(n, 1, AckLevel::kWritten));
  for (std::uint64_t n = 0; n < 10; ++n) EXPECT_TRUE(kit.remove(n));
  ASSERT_TRUE(kit.reopen()) << kit.why;
  EXPECT_EQ(kit.stats().recovered_tombstones.value(), 10u);
}

TEST_F(WhileRecoveringTest, OfAnEmptyStoreAllIsRead) {
  open();
  EXPECT_EQ(kit_.stats().recovery_percent.value(), 100u);
  kit_.close();
  kit_.options.flash_bytes = 0;
  open();
  EXPECT_EQ(kit_.stats().recovery_percent.value(), 100u);
}

TEST_F(WhileRecoveringTest, WhatIsDamagedIsAMissAndIsDroppedAfterIt) {
  open();
  put_all(kit_, 40);
  kit_.settle();
  const std::uint32_t oldest = segment_of(0), newest = segment_of(39);
  kit_.close();
  for (std::uint64_t page = 2; page < 14; ++page) kit_.drive().flip_bit(at(newest) + page * kPageBytes + 10, 3);
  hold_back_footer(oldest, std::chrono::seconds(3));
  reopen_asking({39});
  EXPECT_TRUE(gets_.contains(39));
  EXPECT_FALSE(found_.contains(39));
  EXPECT_EQ(kit_.get(39), 0u);
  ASSERT_TRUE(kit_.put(39, 2, AckLevel::kWritten));
  ASSERT_TRUE(kit_.reopen()) << kit_.why;
  EXPECT_EQ(kit_.get(39), 2u);
}

}  // namespace
}  // namespace kvd::store
