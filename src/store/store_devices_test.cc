// Tests of a store of several devices on simulated drives: where records lie, what reads wait for, what becomes of
// copies on two of them.
#include <algorithm>
#include <array>
#include <optional>

#include <gtest/gtest.h>

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
  std::optional<Code> await_removals() {
    std::optional<Code> code;
    kit_.store->await_removals([&](Status status) { code = status ? Code::kOk : status.error().code; });
    kit_.loop.run_until([&] { return code.has_value(); }, seconds(1));
    return code;
  }

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

// The frame that hung lands in the end, and its record has been removed from where it was written instead.
TEST_F(StoreDevicesTest, AFrameThatLandsLateIsEndedWithItsRecord) {
  for (const bool remove : {false, true}) {
    StoreKit kit(3);
    kit.add_device();
    ASSERT_TRUE(kit.open()) << kit.why;
    kit.drive(0).stall(UINT64_MAX, Duration::max());
    kit.drive(1).stall(UINT64_MAX, Duration::max());
    std::optional<Code> code;
    kit.start_put(1, code, AckLevel::kWritten);
    kit.loop.run_for(Millis(1));
    const std::size_t hangs = kit.drive(0).counters().writes > kit.drive(1).counters().writes ? 0 : 1;
    kit.drive(1 - hangs).release();
    kit.loop.run_for(seconds(12));
    EXPECT_EQ(code, Code::kOk);
    EXPECT_TRUE(remove ? kit.remove(1) : kit.replace(1, 2, AckLevel::kPooled).has_value());
    kit.loop.run_for(seconds(1));
    kit.drive(hangs).release();
    kit.loop.run_for(seconds(10));
    kit.kill();
    ASSERT_TRUE(kit.open()) << kit.why;
    EXPECT_EQ(kit.get(1), remove ? 0u : 2u);
    EXPECT_EQ(kit.stats().recovered_records.value(), remove ? 0u : 1u);
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

// ---- Copies on two devices ----

// What lies on one device alone, as if the other had never been.
class TwoCopiesTest : public StoreDevicesTest {
 protected:
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
