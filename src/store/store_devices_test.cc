// Tests of a store of several devices on simulated drives: where records lie, what reads wait for, what becomes of
// copies on two of them.
#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <optional>

#include <gtest/gtest.h>

#include "store/format.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

using std::chrono::seconds;

class StoreDevicesTest : public ::testing::Test {
 protected:
  explicit StoreDevicesTest(std::size_t more = 1) {
    while (more-- > 0) kit_.add_device();
  }
  void open() { ASSERT_TRUE(kit_.open()) << kit_.why; }
  void put(std::uint64_t from, std::uint64_t to, AckLevel level = AckLevel::kSynced) {
    for (std::uint64_t n = from; n < to; ++n) ASSERT_TRUE(kit_.put(n, 1, level)) << n;
  }
  // Takes the place of everything in the pool: what is found is on flash.
  void empty_pool(std::uint64_t first = 10'000) {
    for (std::uint64_t n = first; n < first + 40; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  }
  // Which device a record lies on: one read of it, and whose drive that was. Nothing: a miss, or in the pool.
  std::optional<std::size_t> device_of(std::uint64_t number) {
    std::array<std::uint64_t, 2> before = {kit_.drive(0).counters().reads, kit_.drive(1).counters().reads};
    if (kit_.lookup(number) != Tier::kFlash || kit_.get(number) == 0) return std::nullopt;
    for (std::size_t i = 0; i < 2; ++i)
      if (kit_.drive(i).counters().reads > before[i]) return i;
    return std::nullopt;
  }
  // It takes what comes and answers nothing more.
  void turn_off(std::size_t device) {
    kit_.drive(device).stall(UINT64_MAX, Duration::max());
    const std::uint64_t before = kit_.stats().tier_outages.value();
    for (std::uint64_t n = 20'000; kit_.stats().tier_outages.value() == before; ++n) {
      ASSERT_TRUE(kit_.put(n, 1, AckLevel::kPooled));
      kit_.loop.run_for(seconds(1));
    }
  }
  // It answers all that it has, and is probed.
  void turn_on(std::size_t device) {
    kit_.drive(device).release();
    kit_.loop.run_for(seconds(5));
  }
  std::optional<Code> await(std::uint64_t number, AckLevel level) {
    std::optional<Code>& code = codes_.emplace_back();
    kit_.store->await(kit_.ns, id_of(number), level, [&code](Status s) { code = s ? Code::kOk : s.error().code; });
    kit_.loop.run_until([&] { return code.has_value(); }, seconds(1));
    return code;
  }
  std::optional<Code> await_removals() { return kit_.await_removals(seconds(1)); }

  std::deque<std::optional<Code>> codes_;  // answers, which may come later than they are waited for
  StoreKit kit_;
};

TEST_F(StoreDevicesTest, RecordsOfOnePrefixLieOnAllDevices) {
  open();
  put(0, 24);
  EXPECT_GT(kit_.drive(0).counters().bytes_written, 12 * 36'000u);
  EXPECT_GT(kit_.drive(1).counters().bytes_written, 12 * 36'000u);
  kit_.kill();
  open();
  for (std::uint64_t n = 0; n < 24; ++n) EXPECT_EQ(kit_.get(n), 1u) << n;
  EXPECT_EQ(kit_.stats().recovered_records.value(), 24u);
}

TEST_F(StoreDevicesTest, EverythingIsFoundBehindAnOrderlyEnd) {
  kit_.options.list_uses = true;
  open();
  put(0, 24, AckLevel::kPooled);
  ASSERT_TRUE(kit_.reopen()) << kit_.why;
  for (std::uint64_t n = 0; n < 24; ++n) EXPECT_EQ(kit_.get(n), 1u) << n;
}

TEST_F(StoreDevicesTest, SegmentsAreOfOneAgeWhateverTheSizes) {
  kit_.options.devices.clear();
  kit_.add_device(24);  // three times as large
  open();
  const std::uint64_t first = kit_.drive(0).counters().bytes_written, second = kit_.drive(1).counters().bytes_written;
  for (std::uint64_t n = 0; n < 160; ++n) {
    ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
    kit_.loop.run_for(Millis(5));  // segments become ready
  }
  const double small = static_cast<double>(kit_.drive(0).counters().bytes_written - first);
  const double large = static_cast<double>(kit_.drive(1).counters().bytes_written - second);
  EXPECT_NEAR(large / small, 3, 0.5);
}

TEST_F(StoreDevicesTest, ASlowDeviceHoldsUpNobody) {
  open();
  put(0, 24);
  ASSERT_TRUE(kit_.reopen());
  kit_.drive(0).stall(UINT64_MAX, Duration::max());
  std::uint64_t got = 0, waiting = 0;
  std::vector<Get> gets(24);
  std::vector<std::vector<std::byte>> keys(24);
  for (std::uint64_t n = 0; n < 24; ++n) {
    keys[n] = foreign_of(n);
    gets[n].ns = kit_.ns;
    gets[n].id = id_of(n);
    gets[n].foreign = keys[n];
    ++waiting;
    gets[n].on_done = [&](const Result<RecordView>& view) {
      --waiting;
      got += view ? 1 : 0;
    };
    kit_.store->start_get(gets[n]);
  }
  kit_.loop.run_for(Millis(50));
  EXPECT_GE(got, 8u);
  EXPECT_GT(waiting, 0u);
  kit_.loop.run_for(seconds(25));
  EXPECT_EQ(waiting, 0u) << "the breaker has opened";
  kit_.kill();
}

// Of random operations the sums of all devices are the store's.
TEST_F(StoreDevicesTest, FiguresOfTheDevicesAddUpToTheStores) {
  open();
  const auto figures = kit_.store->device_figures();
  ASSERT_EQ(figures.size(), 2u);
  EXPECT_EQ(figures[0].dir, kit_.options.dir);
  EXPECT_EQ(figures[1].dir, kit_.options.devices[0].dir);
  const auto sum = [&](auto DeviceStats::* field) {
    return (figures[0].stats->*field).value() + (figures[1].stats->*field).value();
  };
  for (std::uint64_t n = 0; n < 300; ++n) {  // more than flash holds: segments are given up
    ASSERT_TRUE(n % 7 == 0 && n > 0 ? kit_.replace(n - 3, 2, AckLevel::kWritten) : kit_.put(n, 1, AckLevel::kWritten));
    if (n % 5 == 0) static_cast<void>(kit_.remove(n / 2));
    static_cast<void>(kit_.get(n / 3));
    kit_.loop.run_for(Millis(5));
  }
  kit_.loop.run_for(seconds(1));
  const StoreStats& all = kit_.stats();
  EXPECT_GT(all.segments_evicted.value(), 0u);
  EXPECT_EQ(sum(&DeviceStats::records), all.flash_records.value());
  EXPECT_EQ(sum(&DeviceStats::segments_free), all.segments_free.value());
  EXPECT_EQ(sum(&DeviceStats::bytes_written), all.flash_bytes_written.value());
  EXPECT_EQ(sum(&DeviceStats::bytes_read), all.flash_bytes_read.value());
  EXPECT_EQ(sum(&DeviceStats::bytes_scrubbed), all.scrubbed_bytes.value());
  EXPECT_EQ(sum(&DeviceStats::in_flight), 0u);
  EXPECT_EQ(sum(&DeviceStats::removals_waiting), 0u);
  for (const DeviceFigures& device : figures) {
    EXPECT_EQ(device.stats->segments.value(), 8u);
    EXPECT_EQ(device.stats->bytes.value(), (4u << 20) + 8 * kit_.options.segment_bytes);
    EXPECT_GT(device.stats->records.value(), 20u);
    EXPECT_GT(device.stats->bytes_read.value(), 0u);
  }
}

// ---- A device that is off ----

TEST_F(StoreDevicesTest, WhatADeviceThatIsOffHasIsMissedAndTheOtherGoesOn) {
  open();
  put(0, 24);
  ASSERT_TRUE(kit_.reopen());
  turn_off(0);
  std::uint64_t hits = 0;
  for (std::uint64_t n = 0; n < 24; ++n) hits += kit_.get(n);
  EXPECT_GE(hits, 8u);
  EXPECT_LT(hits, 24u);
  EXPECT_EQ(kit_.stats().tier_outages.value(), 1u);
  EXPECT_EQ(kit_.stats().tier_off.value(), 0u) << "one is on";
  const auto figures = kit_.store->device_figures();
  EXPECT_EQ(figures[0].stats->off.value(), 1u);
  EXPECT_EQ(figures[0].stats->outages.value(), 1u);
  EXPECT_NE(std::string(figures[0].stats->why_off.load()), "");
  EXPECT_EQ(figures[1].stats->off.value(), 0u);
  EXPECT_EQ(kit_.log.count("store: device " + kit_.options.dir + " turned off"), 1u);
  put(100, 110);
  turn_on(0);
  EXPECT_EQ(figures[0].stats->off.value(), 0u);
  for (std::uint64_t n = 0; n < 24; ++n) EXPECT_EQ(kit_.get(n), 1u) << n << ": it is back";
}

TEST_F(StoreDevicesTest, ADrainDoesNotWaitForADeviceThatIsOff) {
  open();
  put(0, 8);
  turn_off(0);  // within a frame
  put(100, 104, AckLevel::kPooled);
  bool drained = false;
  kit_.store->drain(after(kit_.loop.now(), seconds(60)), [&] { drained = true; });
  kit_.loop.run_for(seconds(2));
  EXPECT_TRUE(drained);
  kit_.kill();
  kit_.drive(0).release();
  open();
  for (std::uint64_t n = 100; n < 104; ++n) EXPECT_EQ(kit_.get(n), 1u) << n;
}

TEST_F(StoreDevicesTest, FramesOfADeviceThatHangsAreWrittenToTheOther) {
  open();
  put(0, 8);
  kit_.drive(0).stall(UINT64_MAX, Duration::max());
  std::array<std::optional<Code>, 20> codes;
  for (std::uint64_t n = 0; n < codes.size(); ++n) kit_.start_put(100 + n, codes[n], AckLevel::kWritten);
  kit_.loop.run_for(seconds(35));
  for (const auto& code : codes) EXPECT_EQ(code, Code::kOk);
  kit_.kill();
  kit_.drive(0).release();
  open();
  for (std::uint64_t n = 0; n < codes.size(); ++n) EXPECT_EQ(kit_.get(100 + n), 1u) << n;
}

// Opens the store with one device only: the others are gone for good.
void open_alone(StoreKit& kit, std::size_t device) {
  kit.kill();
  kit.options.forget_missing = true;
  device == 0 ? kit.options.devices.clear() : void(kit.options.flash_bytes = 0);
  ASSERT_TRUE(kit.open()) << kit.why;
}

// Record 1 is put while this device hangs with its frame, until that is written to the other one.
void put_late(StoreKit& kit, std::size_t hangs) {
  kit.add_device();
  ASSERT_TRUE(kit.open()) << kit.why;
  for (std::size_t first = 0; first < hangs; ++first) ASSERT_TRUE(kit.put(2, 1, AckLevel::kWritten));
  const std::uint64_t before = kit.drive(hangs).counters().writes;
  kit.drive(hangs).stall(UINT64_MAX, Duration::max());
  std::optional<Code> code;
  kit.start_put(1, code, AckLevel::kWritten);
  kit.loop.run_for(seconds(12));
  EXPECT_EQ(code, Code::kOk);
  EXPECT_GT(kit.drive(hangs).counters().writes, before);
}

// The frame that hung lands in the end, and its record has been removed from where it was written instead.
TEST(LateFrame, IsEndedWithItsRecord) {
  for (const std::size_t hangs : {0u, 1u}) {
    for (const bool remove : {false, true}) {
      StoreKit kit(3);
      put_late(kit, hangs);
      EXPECT_TRUE(remove ? kit.remove(1) : kit.replace(1, 2, AckLevel::kPooled).has_value());
      kit.loop.run_for(seconds(1));
      kit.drive(hangs).release();
      kit.loop.run_for(seconds(10));
      kit.kill();
      ASSERT_TRUE(kit.open()) << kit.why;
      EXPECT_EQ(kit.get(1), remove ? 0u : 2u);
      EXPECT_EQ(kit.stats().recovered_records.value(), (remove ? 0u : 1u) + hangs);
      open_alone(kit, hangs);
      EXPECT_EQ(kit.get(1), 0u);
    }
  }
}

// The next start finds both, and a removal names both.
TEST(LateFrame, IsKnownBehindAStart) {
  for (const std::size_t hangs : {0u, 1u}) {
    StoreKit kit(3);
    put_late(kit, hangs);
    kit.drive(hangs).release();
    kit.loop.run_for(Millis(1));
    kit.kill();
    ASSERT_TRUE(kit.open()) << kit.why;
    EXPECT_EQ(kit.get(1), 1u);
    EXPECT_TRUE(kit.remove(1));
    kit.loop.run_for(seconds(1));
    open_alone(kit, hangs);
    EXPECT_EQ(kit.get(1), 0u);
  }
}

TEST_F(StoreDevicesTest, ARemovalThatADeviceHasToHearOfSaysSoAndIsWrittenWhenItIsBack) {
  open();
  put(0, 12);
  empty_pool();
  std::uint64_t number = 0;
  while (device_of(number) != 0u) ++number;
  turn_off(0);
  EXPECT_TRUE(kit_.remove(number));
  EXPECT_EQ(await_removals(), Code::kIo);
  turn_on(0);
  EXPECT_EQ(await_removals(), Code::kOk);
  kit_.kill();
  open();
  EXPECT_EQ(kit_.get(number), 0u);
}

// Nobody knows what it has: the next start may find older copies of anything.
TEST_F(StoreDevicesTest, WhatADeviceHasThatWentOffWhileItWasReadMayComeBack) {
  kit_.options.devices.clear();
  kit_.add_device(24);  // of which more segments fail than the breaker bears
  open();
  put(0, 180, AckLevel::kWritten);
  kit_.kill();
  const std::uint64_t bytes = kit_.options.segment_bytes;
  for (std::uint64_t s = 1; s < 24; ++s)
    kit_.drive(1).wear_out(io::DiskOp::Kind::kRead, kHeadBytes + s * bytes + kPageBytes, bytes - kPageBytes);
  open();
  EXPECT_EQ(kit_.stats().tier_outages.value(), 1u);
  EXPECT_EQ(kit_.stats().tier_off.value(), 0u);
  EXPECT_FALSE(kit_.store->remove(kit_.ns, id_of(503, 1))) << "of a group that nobody knows";
  EXPECT_EQ(await_removals(), Code::kIo);
  EXPECT_TRUE(kit_.put(500, 1, AckLevel::kSynced));
  const Status replaced = kit_.replace(501, 2, AckLevel::kWritten);
  EXPECT_TRUE(!replaced && replaced.error().code == Code::kIo);
  kit_.remove(502);
  EXPECT_EQ(await_removals(), Code::kIo);
}

// ---- Copies on two devices ----

// What lies on one device alone, as if the other had never been.
class TwoCopiesTest : public StoreDevicesTest {
 protected:
  // On which nothing is given up.
  void take_large_devices() {
    kit_.options.flash_bytes = kHeadBytes + 40 * kit_.options.segment_bytes;
    kit_.options.devices.clear();
    kit_.add_device(40);
  }
  // A record on a device that goes off then and is put as another version, which goes to the other.
  void put_on_both(bool replaces, AckLevel level = AckLevel::kPooled, Code expected = Code::kOk) {
    open();
    put(0, 12);
    empty_pool();
    while (device_of(number_) != 0u) ++number_;
    empty_pool(11'000);
    turn_off(0);
    ASSERT_EQ(kit_.lookup(number_), Tier::kNone);
    const Status put = replaces ? kit_.replace(number_, 2, level) : kit_.put(number_, 2, level);
    EXPECT_EQ(put ? Code::kOk : put.error().code, expected);
    kit_.loop.run_for(seconds(1));
  }
  // The process dies while it is off; the next one finds it again.
  void start_again() {
    kit_.kill();
    kit_.drive(0).release();
    open();
  }

  // A synced record on the second device is put as version 2, whose frame has completed on the first one; `then` is
  // called before the flush behind that.
  void replace_across(const std::function<void()>& then) {
    for (std::uint64_t before = 0; before == 0 || kit_.drive(1).counters().bytes_written < before + 30'000; ++number_) {
      before = kit_.drive(1).counters().bytes_written;
      put(number_, number_ + 1);
    }
    --number_;  // the next one goes to the first device
    ASSERT_TRUE(kit_.replace(number_, 2));
    kit_.store->await(kit_.ns, id_of(number_), AckLevel::kWritten, [](Status) {});
    kit_.loop.settle();
    then();
    kit_.loop.run_for(Millis(1));
  }

  // And neither of the two is there behind the next start.
  void expect_the_newer_and_remove() {
    EXPECT_EQ(kit_.get(number_), 2u);
    EXPECT_TRUE(kit_.remove(number_));
    EXPECT_EQ(await_removals(), Code::kOk);
    kit_.kill();
    open();
    EXPECT_EQ(kit_.get(number_), 0u);
  }

  std::uint64_t number_ = 0;
};

TEST_F(TwoCopiesTest, TheNewerOfTwoVersionsIsFound) {
  put_on_both(true);
  start_again();  // before the other has heard of it
  expect_the_newer_and_remove();
}

TEST_F(TwoCopiesTest, TheNewerOfTwoCopiesIsFound) {
  put_on_both(false);
  start_again();
  expect_the_newer_and_remove();
}

TEST_F(TwoCopiesTest, TheOlderIsEndedWhenItsDeviceIsBack) {
  put_on_both(true);
  turn_on(0);
  EXPECT_EQ(await_removals(), Code::kOk);
  expect_the_newer_and_remove();
}

TEST_F(TwoCopiesTest, ARemovalEndsBothWhileOneIsOff) {
  put_on_both(false);
  std::uint64_t records = 0;
  for (const DeviceFigures& device : kit_.store->device_figures()) records += device.stats->records.value();
  EXPECT_EQ(records, kit_.stats().flash_records.value()) << "the newer copy is counted, where it lies";
  EXPECT_TRUE(kit_.remove(number_));
  EXPECT_EQ(await_removals(), Code::kIo);
  turn_on(0);
  EXPECT_EQ(await_removals(), Code::kOk);
  kit_.kill();
  open();
  EXPECT_EQ(kit_.get(number_), 0u);
}

TEST_F(TwoCopiesTest, WhoPutsInThePlaceOfWhatADeviceThatIsOffHasIsToldThatItMayComeBack) {
  put_on_both(true, AckLevel::kWritten, Code::kIo);
}

// Of the image that was put the store knows what it replaced; it has left the pool.
TEST_F(TwoCopiesTest, WhoAsksForWhatReplacedItWaitsToo) {
  take_large_devices();
  put_on_both(true);
  for (const bool loaded : {false, true}) {
    empty_pool(12'000 + 100 * loaded);
    ASSERT_EQ(kit_.lookup(number_), Tier::kFlash);
    if (loaded) {
      EXPECT_EQ(kit_.get(number_), 2u);
    }
    for (const AckLevel level : {AckLevel::kWritten, AckLevel::kSynced}) EXPECT_EQ(await(number_, level), Code::kIo);
    EXPECT_EQ(await(11'039, AckLevel::kSynced), Code::kOk) << "another one";
  }
  turn_on(0);
  EXPECT_EQ(await(number_, AckLevel::kSynced), Code::kOk);
  kit_.lose_power(1, 0);
  open();
  EXPECT_EQ(kit_.get(number_), 2u);
}

// As long as the older copy is to be ended: before the flush of the newer, and while its tombstone is on its way.
TEST_F(TwoCopiesTest, WhoAsksMeanwhileWaitsForTheTombstoneOfTheOlder) {
  open();
  put(100, 140);
  replace_across([this] { kit_.drive(0).stall(1, seconds(5)); });
  for (std::uint64_t n = 100; n < 140; ++n) EXPECT_EQ(kit_.get(n), 1u);
  ASSERT_EQ(kit_.lookup(number_), Tier::kFlash);
  kit_.drive(1).hold_back(kHeadBytes, UINT32_MAX, seconds(3));  // the frame with the tombstone
  std::array<std::optional<Code>, 2> codes;
  for (auto& code : codes) {
    kit_.store->await(kit_.ns, id_of(number_), AckLevel::kWritten,
                      [&code](Status s) { code = s ? Code::kOk : s.error().code; });
    kit_.loop.run_for(seconds(1));
    EXPECT_EQ(code, std::nullopt);
    kit_.loop.run_for(Millis(3'500));
  }
  kit_.loop.run_for(seconds(5));
  for (const auto& code : codes) EXPECT_EQ(code, Code::kOk);
}

TEST_F(TwoCopiesTest, TheOlderDoesNotEndBeforeTheNewerIsDurable) {
  open();
  replace_across([this] { kit_.drive(0).stall(1, seconds(5)); });
  kit_.loop.run_for(seconds(1));
  kit_.lose_power(1, 0);
  open();
  EXPECT_EQ(kit_.get(number_), 1u);
}

// All other segments of its device are given up meanwhile.
TEST_F(TwoCopiesTest, TheNewersSegmentIsNotGivenUpBeforeTheOlderHasEnded) {
  kit_.options.demote_idle = Millis(1);
  open();
  replace_across([this] { kit_.drive(1).hold_back(kHeadBytes, UINT32_MAX, seconds(5)); });  // the tombstone's frame
  const std::uint64_t given_up = kit_.stats().segments_evicted.value();
  for (std::uint64_t n = 1'000; n < 1'150; ++n, kit_.loop.run_for(Millis(20))) static_cast<void>(kit_.put(n));
  EXPECT_GT(kit_.stats().segments_evicted.value(), given_up + 8);
  kit_.lose_power(1, 0);
  kit_.drive(1).hold_back(kHeadBytes, UINT32_MAX, Duration::zero());
  open();
  EXPECT_NE(kit_.get(number_), 1u);
}

// Nobody knows whether the newer is there.
TEST_F(TwoCopiesTest, WhatWasReplacedEndsBehindAFailedFlushToo) {
  open();
  replace_across([this] { kit_.drive(0).inject(io::DiskOp::Kind::kSync, 1, io::SimFault::kForget); });
  kit_.loop.run_for(seconds(1));
  kit_.lose_power(1, 0);
  open();
  EXPECT_NE(kit_.get(number_), 1u);
}

TEST_F(TwoCopiesTest, WhatWasOnlyOutdatedStaysBehindAFailedFlush) {
  take_large_devices();
  open();
  put(0, 12);
  empty_pool();
  while (device_of(number_) != 0u) ++number_;
  empty_pool(11'000);
  turn_off(0);
  kit_.loop.run_for(seconds(1));
  kit_.drive(1).inject(io::DiskOp::Kind::kSync, 1, io::SimFault::kForget);
  ASSERT_TRUE(kit_.put(number_, 2));
  kit_.store->await(kit_.ns, id_of(number_), AckLevel::kWritten, [](Status) {});
  kit_.loop.run_for(seconds(1));
  turn_on(0);
  kit_.lose_power(1, 0);
  open();
  EXPECT_NE(kit_.get(number_), 0u) << "version 1 was synced";
}

// A device that is right alone: the other one is gone for good.
TEST_F(TwoCopiesTest, TheOlderIsEndedOnItsOwnDevice) {
  for (const bool by_recovery : {false, true}) {
    struct TwoCopies final : TwoCopiesTest {
      void TestBody() override {}
      using TwoCopiesTest::kit_, TwoCopiesTest::number_, TwoCopiesTest::open, TwoCopiesTest::put_on_both,
          TwoCopiesTest::take_large_devices, TwoCopiesTest::start_again, TwoCopiesTest::turn_on,
          TwoCopiesTest::await_removals;
    } one;
    one.take_large_devices();
    one.put_on_both(true);
    by_recovery ? one.start_again() : one.turn_on(0);
    EXPECT_EQ(one.await_removals(), Code::kOk);
    one.kit_.kill();
    one.kit_.options.devices.clear();
    one.kit_.options.forget_missing = true;
    one.open();
    EXPECT_EQ(one.kit_.get(one.number_), 0u) << by_recovery;
  }
}

TEST_F(TwoCopiesTest, WhatHasEndedOnItsOwnDeviceIsNotWrittenAgainAtEachStart) {
  take_large_devices();
  put_on_both(true);
  start_again();
  EXPECT_EQ(await_removals(), Code::kOk);
  kit_.loop.run_for(seconds(1));
  EXPECT_GT(kit_.stats().tombstones.value(), 0u);
  kit_.kill();
  open();
  kit_.loop.run_for(seconds(1));
  EXPECT_EQ(kit_.stats().tombstones.value(), 0u);
}

// From when recovery has written a segment's footer it cannot be read again.
class FootersFail final : public io::SimObserver {
 public:
  explicit FootersFail(io::SimDrive& drive) : drive_(drive) { drive_.observe(this); }
  ~FootersFail() override { drive_.observe(nullptr); }
  void submitted(std::uint64_t id, io::DiskOp::Kind kind, std::uint64_t offset, Bytes) override {
    if (kind == io::DiskOp::Kind::kWrite && offset >= kHeadBytes && id_ == 0) id_ = id, at_ = offset;
  }
  void completed(std::uint64_t id, io::DiskOp::Kind, bool) override {
    if (id_ == 0 || id != id_) return;
    drive_.wear_out(io::DiskOp::Kind::kRead, at_, kPageBytes);
  }

 private:
  io::SimDrive& drive_;
  std::uint64_t id_ = 0, at_ = 0;
};

// The older one lies in the segment that was begun later.
TEST_F(TwoCopiesTest, WhereTheNewerCannotBeToldNeitherIsFoundAndBothAreKnown) {
  for (const bool readable : {true, false}) {
    StoreKit kit;
    kit.add_device();
    ASSERT_TRUE(kit.open()) << kit.why;
    const auto writes_to = [&kit](std::uint64_t n, std::size_t device) {
      const std::uint64_t before = kit.drive(device).counters().bytes_written;
      EXPECT_TRUE(kit.put(n, 1, AckLevel::kWritten));
      return kit.drive(device).counters().bytes_written > before + 30'000;
    };
    std::uint64_t n = 0;
    while (!writes_to(n, 1)) ++n;
    const std::uint64_t number = n;
    EXPECT_TRUE(kit.replace(number, 2));
    kit.store->await(kit.ns, id_of(number), AckLevel::kWritten, [](Status) {});
    kit.loop.settle();  // to the first device; this one to the second
    std::optional<Code> code;
    kit.start_put(n + 1, code);
    kit.loop.run_for(std::chrono::microseconds(400));
    EXPECT_EQ(code, Code::kOk);
    kit.kill();
    {
      std::optional<FootersFail> faults;
      if (!readable) faults.emplace(kit.drive(1));
      ASSERT_TRUE(kit.open()) << kit.why;
    }
    kit.drive(1).mend();
    EXPECT_EQ(kit.get(number), readable ? 2u : 0u);
    EXPECT_EQ(kit.get(n + 1), 1u);
    kit.remove(number);
    std::optional<Status> removed;
    kit.store->await_removals([&](Status status) { removed = status; });
    kit.loop.run_for(seconds(1));
    EXPECT_TRUE(removed && *removed);
    kit.kill();
    ASSERT_TRUE(kit.open()) << kit.why;
    EXPECT_EQ(kit.get(number), 0u);
  }
}

// As much is written to the newer one's device as lets it go, with the older one's back or not.
TEST_F(TwoCopiesTest, TheOlderDoesNotComeBackWhenTheNewerIsEvicted) {
  put_on_both(true);
  turn_on(0);
  for (std::uint64_t n = 1'000; n < 1'200; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
  EXPECT_NE(kit_.get(number_), 1u);
  kit_.kill();
  open();
  EXPECT_NE(kit_.get(number_), 1u);
}

TEST_F(TwoCopiesTest, WhatWasSyncedDoesNotEndBeforeItsSuccessorIsDurable) {
  open();
  put(0, 12);
  empty_pool();
  while (device_of(number_) != 0u) ++number_;
  // All that is put in its place goes to the other device, whose flushes are late.
  for (std::uint64_t n = 0; n < 40; ++n) {
    ASSERT_TRUE(kit_.replace(number_, 2 + n % 5, AckLevel::kWritten));
    kit_.lose_power(n, 0);
    open();
    EXPECT_NE(kit_.get(number_), 0u) << n;
  }
}

}  // namespace
}  // namespace kvd::store
