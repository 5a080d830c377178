// Tests of the store as a whole on a simulated machine: gets, puts, leases, acknowledgements, bounds.
#include "store/store.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "block/checksum.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

constexpr std::uint64_t kImage = 4096 + 4 * 8192;  // of the kit's records

class StoreTest : public ::testing::Test {
 protected:
  void open() { ASSERT_TRUE(kit_.open()) << kit_.why; }
  // Begins a get of record n and leaves it to the loop.
  Get& start_get(std::uint64_t n, std::uint16_t first = 0, std::uint16_t count = 0, Time deadline = kNever) {
    foreigns_.push_back(foreign_of(n));
    Get& get = gets_.emplace_back();
    get.ns = kit_.ns;
    get.id = id_of(n);
    get.foreign = foreigns_.back();
    get.layer_first = first;
    get.layer_count = count;
    get.deadline = deadline;
    get.on_done = [this, n](Result<RecordView> view) {
      order_.push_back(n);
      codes_.push_back(view ? Code::kOk : view.error().code);
    };
    kit_.store->start_get(get);
    return get;
  }

  StoreKit kit_;
  std::deque<Get> gets_;
  std::deque<std::vector<std::byte>> foreigns_;
  std::vector<std::uint64_t> order_;
  std::vector<Code> codes_;
};

TEST_F(StoreTest, GivesBackWhatWasPut) {
  open();
  EXPECT_EQ(kit_.lookup(7), Tier::kNone);
  EXPECT_EQ(kit_.get(7), 0u);
  EXPECT_EQ(kit_.why_missed, Code::kNotFound);
  ASSERT_TRUE(kit_.put(7, 3));
  EXPECT_EQ(kit_.lookup(7), Tier::kPool);
  EXPECT_EQ(kit_.get(7), 3u);
  EXPECT_EQ(kit_.get(7, 1, 2), 3u);
  EXPECT_EQ(kit_.stats().pool_hits.value(), 2u);
  EXPECT_EQ(kit_.stats().misses.value(), 1u);
}

TEST_F(StoreTest, WorksWithoutFlash) {
  kit_.options.flash_bytes = 0;
  kit_.options.dir = "";
  open();
  ASSERT_TRUE(kit_.put(1, 2));
  EXPECT_EQ(kit_.get(1), 2u);
  EXPECT_EQ(kit_.put(2, 1, AckLevel::kWritten).error().code, Code::kIo);
  for (std::uint64_t n = 10; n < 100; ++n) ASSERT_TRUE(kit_.put(n)) << "old records make room";
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
  EXPECT_TRUE(kit_.remove(99));
  EXPECT_FALSE(kit_.remove(99));
  kit_.close();
}

TEST_F(StoreTest, DemotesWhenIdleAndServesFromFlashAfterARestart) {
  open();
  for (std::uint64_t n = 0; n < 10; ++n) ASSERT_TRUE(kit_.put(n, 2));
  EXPECT_EQ(kit_.stats().dirty_records.value(), 10u);
  kit_.loop.run_for(Millis(40));
  EXPECT_EQ(kit_.stats().dirty_records.value(), 10u) << "not idle for long enough yet";
  kit_.loop.run_for(Millis(40));
  EXPECT_EQ(kit_.stats().dirty_records.value(), 0u);
  EXPECT_EQ(kit_.stats().flash_records.value(), 10u);
  kit_.close();
  open();
  EXPECT_EQ(kit_.stats().recovered_records.value(), 10u);
  for (std::uint64_t n = 0; n < 10; ++n) {
    EXPECT_EQ(kit_.lookup(n), Tier::kFlash);
    EXPECT_EQ(kit_.get(n), 2u) << n;
    EXPECT_EQ(kit_.lookup(n), Tier::kPool);
  }
  EXPECT_EQ(kit_.stats().flash_hits.value(), 10u);
}

TEST_F(StoreTest, DemotesAtTheLatestAfterTheAgeBound) {
  kit_.options.demote_idle = Millis(500);
  kit_.options.demote_after = std::chrono::seconds(3);
  open();
  ASSERT_TRUE(kit_.put(1));
  for (int i = 0; i < 29; ++i) {
    kit_.loop.run_for(Millis(100));
    EXPECT_EQ(kit_.get(1), 1u);  // never idle
  }
  EXPECT_EQ(kit_.stats().dirty_records.value(), 1u);
  kit_.loop.run_for(Millis(200));
  EXPECT_EQ(kit_.get(1), 1u);
  EXPECT_EQ(kit_.stats().dirty_records.value(), 0u);
}

// ---- Reads from flash ----

TEST_F(StoreTest, ReadsOnlyTheLayersThatAreAskedFor) {
  open();
  ASSERT_TRUE(kit_.put(1));
  ASSERT_TRUE(kit_.reopen());
  const auto before = kit_.stats().flash_bytes_read.value();
  EXPECT_EQ(kit_.get(1, 2, 1), 1u);
  EXPECT_EQ(kit_.stats().flash_bytes_read.value() - before, 4096u + 8192u) << "table and one slab";
  EXPECT_EQ(kit_.lookup(1), Tier::kFlash) << "the rest is still there";
  EXPECT_EQ(kit_.get(1, 2, 2), 1u);
  EXPECT_EQ(kit_.stats().flash_bytes_read.value() - before, 4096u + 2 * 8192u) << "what is there is not read again";
  EXPECT_EQ(kit_.get(1), 1u);
  EXPECT_EQ(kit_.stats().flash_bytes_read.value() - before, kImage);
  EXPECT_EQ(kit_.lookup(1), Tier::kPool);
}

TEST_F(StoreTest, ReadsARecordOnceForManyGets) {
  open();
  ASSERT_TRUE(kit_.put(1));
  ASSERT_TRUE(kit_.reopen());
  const auto before = kit_.stats().flash_bytes_read.value();
  for (int i = 0; i < 5; ++i) start_get(1);
  start_get(1, 3, 1);
  kit_.loop.run_for(Millis(10));
  EXPECT_EQ(codes_, std::vector<Code>(6, Code::kOk));
  EXPECT_EQ(kit_.stats().flash_bytes_read.value() - before, kImage);
}

TEST_F(StoreTest, FirstLayersOfAllRecordsArriveBeforeTheLastOnes) {
  // Records of 4 slabs of 1 MiB: one operation a slab.
  kit_.options.pool_bytes = 256 << 20;
  kit_.options.segment_bytes = 64 << 20;
  kit_.options.flash_bytes = (4 << 20) + 5 * kit_.options.segment_bytes;
  kit_.name_space = namespace_of(4, 1 << 20);
  open();
  for (std::uint64_t n = 0; n < 20; ++n) ASSERT_TRUE(kit_.put(n));
  ASSERT_TRUE(kit_.reopen());
  for (std::uint64_t n = 0; n < 20; ++n) {
    start_get(n, 0, 1);
    start_get(n, 3, 1);
    start_get(n, 0, 4);
  }
  std::vector<int> firsts_left;
  for (auto& get : gets_) {
    if (get.layer_count == 1 && get.layer_first == 0) continue;
    get.on_done = [this, &firsts_left](Result<RecordView> view) {
      EXPECT_TRUE(view);
      firsts_left.push_back(20 - static_cast<int>(order_.size()));
    };
  }
  kit_.loop.run_for(Millis(100));
  ASSERT_EQ(firsts_left.size(), 40u);
  EXPECT_EQ(firsts_left.front(), 0) << "a last layer came while first layers were missing";
}

TEST_F(StoreTest, APromotedRecordIsReadWholeWithoutAGet) {
  open();
  for (std::uint64_t n = 0; n < 5; ++n) ASSERT_TRUE(kit_.put(n));
  ASSERT_TRUE(kit_.reopen());
  for (std::uint64_t n = 0; n < 5; ++n) kit_.store->promote(kit_.ns, id_of(n));
  kit_.store->promote(kit_.ns, id_of(99));
  kit_.loop.run_for(Millis(10));
  for (std::uint64_t n = 0; n < 5; ++n) EXPECT_EQ(kit_.lookup(n), Tier::kPool);
  EXPECT_EQ(kit_.stats().flash_bytes_read.value() % kPageBytes, 0u);
  const auto read = kit_.stats().flash_bytes_read.value();
  EXPECT_EQ(kit_.get(3), 1u);
  EXPECT_EQ(kit_.stats().flash_bytes_read.value(), read);
}

TEST_F(StoreTest, AGetThatMissesItsDeadlineEndsAndItsBufferStaysUntilTheReadIsOver) {
  open();
  ASSERT_TRUE(kit_.put(1));
  ASSERT_TRUE(kit_.reopen());
  kit_.drive().stall(1, Millis(500));
  start_get(1, 0, 0, after(kit_.loop.now(), Millis(100)));
  kit_.loop.run_for(Millis(99));
  EXPECT_TRUE(codes_.empty());
  kit_.loop.run_for(Millis(2));
  EXPECT_EQ(codes_, std::vector<Code>{Code::kTimeout});
  EXPECT_TRUE(kit_.remove(1));
  EXPECT_EQ(kit_.stats().pool_bytes_used.value(), kImage) << "a read may still land there";
  kit_.loop.run_for(Millis(500));
  EXPECT_EQ(kit_.stats().pool_bytes_used.value(), 0u);
}

TEST_F(StoreTest, ACancelledGetEndsAtOnceAndOthersGoOn) {
  open();
  ASSERT_TRUE(kit_.put(1));
  ASSERT_TRUE(kit_.reopen());
  Get& first = start_get(1);
  start_get(1);
  kit_.store->cancel(first);
  EXPECT_EQ(codes_, std::vector<Code>{Code::kCancelled});
  kit_.store->cancel(first);
  kit_.loop.run_for(Millis(10));
  EXPECT_EQ(codes_, (std::vector<Code>{Code::kCancelled, Code::kOk}));
}

TEST_F(StoreTest, GetsThatWaitEndWhenTheStoreCloses) {
  open();
  ASSERT_TRUE(kit_.put(1));
  ASSERT_TRUE(kit_.reopen());
  start_get(1);
  kit_.store.reset();
  EXPECT_EQ(codes_, std::vector<Code>{Code::kCancelled});
}

TEST_F(StoreTest, RefusesLayersAndGroupsThatTheSchemaLacks) {
  open();
  start_get(1, 4, 1);
  start_get(1, 2, 3);
  Get& get = gets_.emplace_back();
  get.ns = kit_.ns;
  get.id = id_of(1, 9);
  get.on_done = [this](Result<RecordView> view) { codes_.push_back(view.error().code); };
  kit_.store->start_get(get);
  EXPECT_EQ(codes_, std::vector<Code>(3, Code::kInvalid));
}

// ---- Identity ----

TEST_F(StoreTest, AnotherForeignKeyWithTheSameHashIsAMiss) {
  open();
  ASSERT_TRUE(kit_.put(1));
  for (const bool from_flash : {false, true}) {
    if (from_flash) {
      ASSERT_TRUE(kit_.reopen());
    }
    const auto other = foreign_of(2);
    Get get;
    get.ns = kit_.ns;
    get.id = id_of(1);
    get.foreign = other;
    std::optional<Code> code;
    get.on_done = [&](Result<RecordView> view) { code = view ? Code::kOk : view.error().code; };
    kit_.store->start_get(get);
    kit_.loop.run_for(Millis(10));
    EXPECT_EQ(code, Code::kNotFound);
    EXPECT_EQ(kit_.get(1), 1u);
  }
}

TEST_F(StoreTest, EqualKeysOfTwoNamespacesAreTwoRecords) {
  open();
  ASSERT_TRUE(kit_.put(1, 1));
  const auto other = kit_.store->open_namespace(namespace_of(4, 5'000, "another model"));
  ASSERT_TRUE(other);
  EXPECT_EQ(kit_.store->lookup(*other, id_of(1)), Tier::kNone);
  const NamespaceHandle first = kit_.ns;
  kit_.ns = *other;
  ASSERT_TRUE(kit_.put(1, 2));
  kit_.settle();
  EXPECT_EQ(kit_.get(1), 2u);
  kit_.ns = first;
  EXPECT_EQ(kit_.get(1), 1u);
}

TEST_F(StoreTest, ANamespaceWithAnotherSchemaIsRefusedAlsoAfterARestart) {
  open();
  EXPECT_EQ(kit_.store->open_namespace(kit_.name_space), kit_.ns) << "equal: the same handle";
  const auto other = namespace_of(5, 5'000);
  EXPECT_EQ(kit_.store->open_namespace(other).error().code, Code::kInvalid);
  ASSERT_TRUE(kit_.put(1));
  kit_.close();
  kit_.name_space = other;
  EXPECT_EQ(kit_.open().error().code, Code::kInvalid);
}

TEST_F(StoreTest, ANamespaceOpenedWithoutAGroupThatFlashHoldsIsRefused) {
  kit_.name_space.groups.push_back({1, 2, 5'000, 2, 128, HitRule::kAll, 0, "LBHNC"});
  open();
  ASSERT_TRUE(kit_.put(1));
  auto put = kit_.store->begin_put(kit_.ns, id_of(2, 1), {});
  ASSERT_TRUE(put && *put);
  std::vector<std::uint64_t> checksums;
  for (std::uint16_t layer = 0; layer < 2; ++layer) {
    fill_slab(put->slab(layer), 2, 1, layer);
    checksums.push_back(block::slab_checksum(put->seed(), layer, put->slab(layer)));
  }
  kit_.store->complete_put(std::move(*put), checksums, AckLevel::kPooled, [](Status) {});
  kit_.close();
  const GroupSchema kept = kit_.name_space.groups[1];
  kit_.name_space.groups.pop_back();
  EXPECT_EQ(kit_.open().error().code, Code::kInvalid) << "tombstones of the other group could not be written";
  kit_.name_space.groups.push_back(kept);
  EXPECT_TRUE(kit_.store->open_namespace(kit_.name_space).has_value());
  kit_.name_space.groups.push_back({2, 2, 5'000, 2, 128, HitRule::kAll, 0, "LBHNC"});
  EXPECT_EQ(kit_.store->open_namespace(kit_.name_space).error().code, Code::kInvalid) << "open: as it is";
}

TEST_F(StoreTest, OneSlabRecordsWithNativeKeysHaveNoTableAndAreVerifiedAllTheSame) {
  kit_.name_space = namespace_of(1, 6'000);
  open();
  auto put = kit_.store->begin_put(kit_.ns, id_of(1), {});
  ASSERT_TRUE(put && *put);
  fill_slab(put->slab(0), 1, 1, 0);
  const std::uint64_t checksum = block::slab_checksum(put->seed(), 0, put->slab(0));
  kit_.store->complete_put(std::move(*put), {&checksum, 1}, AckLevel::kPooled, [](Status) {});
  ASSERT_TRUE(kit_.reopen());
  const auto read = kit_.stats().flash_bytes_read.value();
  Get get;
  get.ns = kit_.ns;
  get.id = id_of(1);
  bool right = false;
  get.on_done = [&](Result<RecordView> view) {
    right = view && slab_is({view->first_slab, 6'000}, 1, 1, 0) && view->checksums[0] == checksum;
  };
  kit_.store->start_get(get);
  kit_.loop.run_for(Millis(10));
  EXPECT_TRUE(right);
  EXPECT_EQ(kit_.stats().flash_bytes_read.value() - read, 8192u);
}

// ---- Puts ----

TEST_F(StoreTest, APutOfAPresentRecordHasNothingToDo) {
  open();
  ASSERT_TRUE(kit_.put(1, 1));
  EXPECT_FALSE(*kit_.store->begin_put(kit_.ns, id_of(1), foreign_of(1)));
  ASSERT_TRUE(kit_.put(1, 2));
  EXPECT_EQ(kit_.get(1), 1u);
  ASSERT_TRUE(kit_.reopen());
  EXPECT_FALSE(*kit_.store->begin_put(kit_.ns, id_of(1), foreign_of(1)));
  EXPECT_EQ(kit_.stats().puts_duplicate.value(), 1u);
}

TEST_F(StoreTest, AnUnfinishedPutIsInvisibleAndLeavesNoTrace) {
  open();
  {
    auto put = kit_.store->begin_put(kit_.ns, id_of(1), foreign_of(1));
    ASSERT_TRUE(put && *put);
    EXPECT_EQ(kit_.lookup(1), Tier::kNone);
    EXPECT_EQ(kit_.get(1), 0u);
    EXPECT_EQ(kit_.stats().unfinished_puts.value(), 1u);
  }
  EXPECT_EQ(kit_.stats().unfinished_puts.value(), 0u);
  EXPECT_EQ(kit_.stats().pool_bytes_used.value(), 0u);
}

TEST_F(StoreTest, OfTwoPutsAtOnceTheFirstToFinishWins) {
  open();
  auto late = kit_.store->begin_put(kit_.ns, id_of(1), foreign_of(1));
  ASSERT_TRUE(late && *late);
  ASSERT_TRUE(kit_.put(1, 2));
  Status status = fail(Code::kTimeout, "");
  kit_.store->complete_put(std::move(*late), std::vector<std::uint64_t>(4), AckLevel::kWritten,
                           [&](Status s) { status = s; });
  kit_.loop.run_for(Millis(20));
  EXPECT_TRUE(status) << "the present record is written";
  EXPECT_EQ(kit_.get(1), 2u);
}

TEST_F(StoreTest, UnfinishedPutsTakeAtMostHalfThePool) {
  open();
  std::vector<PutHandle> puts;
  for (std::uint64_t n = 0;; ++n) {
    auto put = kit_.store->begin_put(kit_.ns, id_of(n), foreign_of(n));
    if (!put) {
      EXPECT_EQ(put.error().code, Code::kBusy);
      break;
    }
    puts.push_back(std::move(*put));
  }
  EXPECT_LE(puts.size() * kImage, kit_.options.pool_bytes / 2);
  EXPECT_GT((puts.size() + 2) * kImage, kit_.options.pool_bytes / 2);
  EXPECT_GT(kit_.stats().puts_refused.value(), 0u);
}

TEST_F(StoreTest, AFullPoolIsBusyAndDemotesUntilThereIsRoom) {
  kit_.options.demote_idle = std::chrono::hours(1);
  kit_.options.demote_after = std::chrono::hours(1);
  open();
  kit_.drive().stall(UINT64_MAX, Millis(50));
  std::uint64_t n = 0;
  while (kit_.put(n)) ++n;
  EXPECT_GT(n, 20u);
  kit_.loop.run_for(std::chrono::seconds(2));
  EXPECT_LT(kit_.stats().dirty_bytes.value(), kit_.options.pool_bytes / 2);
  ASSERT_TRUE(kit_.put(n));
  for (std::uint64_t i = 0; i <= n; ++i) EXPECT_EQ(kit_.get(i), 1u) << i;
}

TEST_F(StoreTest, RecordsThatFitNeitherPoolNorSegmentAreRefusedByTheirNamespace) {
  open();
  EXPECT_EQ(kit_.store->open_namespace(namespace_of(30, 9'000, "pool")).error().code, Code::kInvalid);
  kit_.close();
  kit_.options.pool_bytes = 64 << 20;
  open();
  EXPECT_EQ(kit_.store->open_namespace(namespace_of(29, 8'192, "segment")).error().code, Code::kInvalid);
  EXPECT_TRUE(kit_.store->open_namespace(namespace_of(25, 8'192, "fits")));
}

// ---- Acknowledgements ----

TEST_F(StoreTest, WrittenSurvivesAKillAndSyncedAPowerLoss) {
  open();
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kWritten));
  EXPECT_EQ(kit_.stats().dirty_records.value(), 0u);
  kit_.kill();
  open();
  EXPECT_EQ(kit_.get(1), 1u);
  ASSERT_TRUE(kit_.put(2, 1, AckLevel::kSynced));
  kit_.lose_power(1, 0);
  open();
  EXPECT_EQ(kit_.get(1), 1u);
  EXPECT_EQ(kit_.get(2), 1u);
}

TEST_F(StoreTest, PutsThatWaitShareFramesAndFlushes) {
  open();
  const auto writes = kit_.drive().counters().writes;
  const auto syncs = kit_.drive().counters().syncs;
  std::vector<std::optional<Code>> codes(20);
  const auto acked = [&] { return std::ranges::count(codes, Code::kOk); };
  for (std::uint64_t n = 0; n < 20; ++n) kit_.start_put(n, codes[n], AckLevel::kSynced);
  EXPECT_EQ(acked(), 0);
  kit_.loop.run_for(Millis(49));
  EXPECT_EQ(acked(), 20);
  // Twenty records are three segments of the kit: frames, headers and footers, and a flush or two for each.
  EXPECT_LE(kit_.drive().counters().writes - writes, 12u);
  EXPECT_LE(kit_.drive().counters().syncs - syncs, 10u);
}

TEST_F(StoreTest, AwaitWritesWhatOnlyDramHolds) {
  kit_.options.demote_idle = std::chrono::hours(1);
  open();
  ASSERT_TRUE(kit_.put(1));
  EXPECT_EQ(kit_.stats().flash_records.value(), 0u);
  ASSERT_TRUE(kit_.put(1, 1, AckLevel::kWritten)) << "present already, and now written";
  EXPECT_EQ(kit_.stats().flash_records.value(), 1u);
}

TEST_F(StoreTest, APutWhoseRecordIsRemovedBeforeItIsWrittenIsCancelled) {
  open();
  kit_.drive().stall(1'000, std::chrono::seconds(1));
  auto put = kit_.store->begin_put(kit_.ns, id_of(1), foreign_of(1));
  std::optional<Code> code;
  kit_.store->complete_put(std::move(*put), std::vector<std::uint64_t>(4), AckLevel::kWritten,
                           [&](Status s) { code = s ? Code::kOk : s.error().code; });
  kit_.loop.run_for(Millis(10));
  EXPECT_TRUE(kit_.remove(1));
  kit_.loop.run_for(Millis(10));
  EXPECT_EQ(code, Code::kCancelled);
  kit_.loop.run_for(std::chrono::seconds(5));
  EXPECT_EQ(kit_.lookup(1), Tier::kNone);
}

TEST_F(StoreTest, DrainWritesEverythingAndRefusesPuts) {
  kit_.options.demote_idle = std::chrono::hours(1);
  open();
  for (std::uint64_t n = 0; n < 12; ++n) ASSERT_TRUE(kit_.put(n));
  bool drained = false;
  kit_.store->drain(kNever, [&] { drained = true; });
  EXPECT_EQ(kit_.store->begin_put(kit_.ns, id_of(50), foreign_of(50)).error().code, Code::kBusy);
  ASSERT_TRUE(kit_.loop.run_until([&] { return drained; }, std::chrono::seconds(5)));
  kit_.lose_power(1, 0);
  open();
  for (std::uint64_t n = 0; n < 12; ++n) EXPECT_EQ(kit_.get(n), 1u);
  EXPECT_EQ(kit_.log.count("lost"), 0u);
}

TEST_F(StoreTest, DrainEndsAtItsDeadlineAndTellsWhatIsLost) {
  open();
  ASSERT_TRUE(kit_.put(1));
  ASSERT_TRUE(kit_.put(2));
  kit_.drive().stall(UINT64_MAX, Duration::max());
  bool drained = false;
  kit_.store->drain(after(kit_.loop.now(), Millis(300)), [&] { drained = true; });
  kit_.loop.run_for(Millis(299));
  EXPECT_FALSE(drained);
  EXPECT_EQ(kit_.log.count("lost"), 0u);
  kit_.loop.run_for(Millis(5));
  EXPECT_TRUE(drained);
  EXPECT_EQ(kit_.log.count(": 72KiB in 2 records could not be written to flash in time and are lost"), 1u);
  kit_.kill();
}

// ---- Leases ----

TEST_F(StoreTest, ALeasedRecordStaysWhileOthersGo) {
  open();
  ASSERT_TRUE(kit_.put(1));
  Pin pin = kit_.store->pin_for_lease(kit_.ns, id_of(1), UINT64_MAX).pin;
  ASSERT_TRUE(pin);
  EXPECT_EQ(kit_.stats().pool_bytes_pinned.value(), kImage);
  for (std::uint64_t n = 100; n < 200; ++n) {
    while (!kit_.put(n)) kit_.settle();
  }
  EXPECT_EQ(kit_.lookup(1), Tier::kPool);
  kit_.store->unpin_lease(std::move(pin));
  EXPECT_EQ(kit_.stats().pool_bytes_pinned.value(), 0u);
  for (std::uint64_t n = 200; n < 300; ++n) {
    while (!kit_.put(n)) kit_.settle();
  }
  EXPECT_NE(kit_.lookup(1), Tier::kPool);
}

TEST_F(StoreTest, LeasesPinAtMostTheirShareOfThePool) {
  kit_.options.pinned_percent_max = 20;
  open();
  std::vector<Pin> pins;
  for (std::uint64_t n = 0; n < 12; ++n) {
    ASSERT_TRUE(kit_.put(n));
    if (Pin pin = kit_.store->pin_for_lease(kit_.ns, id_of(n), UINT64_MAX).pin) pins.push_back(std::move(pin));
  }
  EXPECT_EQ(pins.size(), kit_.options.pool_bytes / 5 / kImage);
  EXPECT_TRUE(kit_.store->pin_for_lease(kit_.ns, id_of(0), UINT64_MAX).pin)
      << "a record counts once, however many leases it has";
  kit_.store->unpin_lease(std::move(pins.back()));
  pins.pop_back();
  EXPECT_FALSE(kit_.store->pin_for_lease(kit_.ns, id_of(1'000), UINT64_MAX).pin);
  for (Pin& pin : pins) kit_.store->unpin_lease(std::move(pin));
}

TEST_F(StoreTest, ARemovedRecordIsGoneAtOnceAndItsPinnedBytesStay) {
  open();
  ASSERT_TRUE(kit_.put(1));
  Pin pin = kit_.store->pin_for_lease(kit_.ns, id_of(1), UINT64_MAX).pin;
  EXPECT_TRUE(kit_.remove(1));
  EXPECT_EQ(kit_.get(1), 0u);
  ASSERT_TRUE(kit_.put(1, 2));
  EXPECT_EQ(kit_.get(1), 2u);
  EXPECT_EQ(kit_.stats().pool_bytes_used.value(), 2 * kImage);
  kit_.store->unpin_lease(std::move(pin));
  EXPECT_EQ(kit_.stats().pool_bytes_used.value(), kImage);
}

}  // namespace
}  // namespace kvd::store
