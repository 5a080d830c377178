// Tests of opening a store of several devices on simulated drives: which are taken, what is refused and left alone, and
// that an opening may be stopped at each of its writes.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

constexpr std::uint64_t kRecords = 20;

class DevicesOpenTest : public ::testing::Test {
 protected:
  void open() { ASSERT_TRUE(kit_.open()) << kit_.why; }
  // A store of two devices that holds records 0 to kRecords, and is closed.
  void make_store() {
    kit_.add_device();
    open();
    for (std::uint64_t n = 0; n < kRecords; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));
    kit_.close();
  }
  std::uint64_t hits() {
    std::uint64_t hits = 0;
    for (std::uint64_t n = 0; n < kRecords; ++n) hits += kit_.get(n) == 1 ? 1 : 0;
    return hits;
  }
  [[nodiscard]] std::string list_path() const { return kit_.options.dir + "/devices.kvd"; }
  [[nodiscard]] std::uint64_t writes() {
    std::uint64_t writes = kit_.disks.drive(list_path()).counters().writes;
    for (std::size_t i = 0; i <= kit_.options.devices.size(); ++i) writes += kit_.drive(i).counters().writes;
    return writes;
  }
  void refused(Code code, const std::string& mentioned) {
    const std::uint64_t before = writes();
    const Status opened = kit_.open();
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, code);
    EXPECT_TRUE(mentions(kit_.why, mentioned)) << kit_.why;
    EXPECT_EQ(writes(), before) << "nothing is changed";
  }

  StoreKit kit_;
};

TEST_F(DevicesOpenTest, AStoreAloneBecomesTheFirstMemberAndKeepsItsContent) {
  open();
  for (std::uint64_t n = 0; n < kRecords; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));
  const auto uuid = kit_.store->uuid();
  kit_.close();
  kit_.add_device();
  open();
  EXPECT_EQ(kit_.store->uuid(), uuid);
  EXPECT_EQ(hits(), kRecords);
  kit_.close();
  kit_.options.devices.clear();
  refused(Code::kInvalid, "is not named");
}

TEST_F(DevicesOpenTest, AStoreOfOneDeviceHasNoList) {
  open();
  kit_.close();
  EXPECT_EQ(kit_.disks.drive(list_path()).size(), 0u);
}

TEST_F(DevicesOpenTest, TheStoresOwnDirectoryMayHoldTheListAlone) {
  kit_.options.flash_bytes = 0;
  make_store();
  EXPECT_EQ(kit_.drive(0).size(), 0u);
  open();
  EXPECT_EQ(hits(), kRecords);
}

TEST_F(DevicesOpenTest, AMissingDeviceStopsTheOpening) {
  make_store();
  kit_.disks.vanish(kit_.path_of(1));
  refused(Code::kInvalid, "is missing");
  kit_.disks.come_back(kit_.path_of(1));
  open();
  EXPECT_EQ(hits(), kRecords);
}

TEST_F(DevicesOpenTest, ADeviceThatCannotBeReadStopsTheOpening) {
  make_store();
  kit_.drive(1).fail_all(EIO);
  refused(Code::kInvalid, kit_.options.devices[0].dir + " cannot be read: simulated disk error: Input/output error: ");
  kit_.drive(1).fail_all(0);
  open();
  EXPECT_EQ(hits(), kRecords);
}

TEST_F(DevicesOpenTest, AnEmptyMountIsNotFilled) {
  make_store();
  const auto image = kit_.drive(1).image();
  kit_.disks.put_back(kit_.path_of(1), {});
  refused(Code::kInvalid, "is missing, " + kit_.options.devices[0].dir + " holds no flash.kvd");
  EXPECT_EQ(kit_.drive(1).size(), 0u);
  EXPECT_FALSE(std::filesystem::exists(kit_.path_of(1)));
  kit_.disks.put_back(kit_.path_of(1), image);
  open();
  EXPECT_EQ(hits(), kRecords);
}

// It is told to go on without one: what the others hold is there, and the one that is given up is not believed again.
TEST_F(DevicesOpenTest, AMemberThatIsForgottenIsBegunAnewWhenItIsBack) {
  make_store();
  open();
  const auto removed = [](std::uint64_t n) { return n % 4 < 2; };  // of both devices
  for (std::uint64_t n = 0; n < kRecords; ++n) EXPECT_EQ(removed(n) && kit_.remove(n), removed(n)) << n;
  kit_.loop.run_for(Millis(100));
  kit_.close();
  const auto device = kit_.options.devices.front();
  kit_.options.devices.clear();
  kit_.options.forget_missing = true;
  open();
  const std::uint64_t kept = hits();
  EXPECT_GT(kept, 0u);
  EXPECT_LT(kept, kRecords / 2);
  for (std::uint64_t n = 0; n < kRecords; ++n) {
    EXPECT_EQ(removed(n) ? kit_.get(n) : 0, 0u) << n;
    static_cast<void>(kit_.remove(n));
  }
  kit_.close();
  kit_.options.forget_missing = false;
  kit_.options.devices.push_back(device);
  open();
  EXPECT_EQ(hits(), 0u);
  EXPECT_EQ(kit_.log.count("is not in the store's list; begun anew"), 1u);
}

TEST_F(DevicesOpenTest, ANewDriveTakesThePlaceOfOneThatIsForgotten) {
  make_store();
  kit_.disks.put_back(kit_.path_of(1), {});
  kit_.options.forget_missing = true;
  open();
  const std::uint64_t kept = hits();
  EXPECT_GT(kept, 0u);
  EXPECT_LT(kept, kRecords);
  kit_.close();
  kit_.options.forget_missing = false;
  open();
  EXPECT_EQ(hits(), kept);
}

TEST_F(DevicesOpenTest, SwappedPathsAreFoundByIdentityAndKeepTheirSizes) {
  kit_.options.devices.clear();
  kit_.add_device(24);
  open();
  for (std::uint64_t n = 0; n < kRecords; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kSynced));
  kit_.close();
  const std::uint64_t large = kit_.drive(1).size();
  kit_.disks.swap(kit_.path_of(0), kit_.path_of(1));
  open();
  EXPECT_EQ(hits(), kRecords);
  kit_.close();
  EXPECT_EQ(kit_.drive(0).size(), large);
  EXPECT_EQ(kit_.log.count("shrinking"), 0u);
}

TEST_F(DevicesOpenTest, ADeviceFromBeforeIsBegunAnew) {
  make_store();
  const auto before = kit_.drive(1).image();
  open();
  for (std::uint64_t n = 0; n < kRecords; ++n) EXPECT_TRUE(kit_.remove(n));
  kit_.close();
  kit_.disks.put_back(kit_.path_of(1), before);
  open();
  EXPECT_EQ(kit_.log.count("is a copy from before"), 1u);
  EXPECT_EQ(hits(), 0u);
}

TEST_F(DevicesOpenTest, ADirectoryFromBeforeIsNotBelieved) {
  make_store();
  const auto before = kit_.disks.drive(list_path()).image();
  open();
  for (std::uint64_t n = 0; n < kRecords; ++n) EXPECT_TRUE(kit_.remove(n));
  kit_.close();
  kit_.disks.put_back(list_path(), before);
  open();
  EXPECT_EQ(kit_.log.count("is from before its devices were opened last"), 1u);
  EXPECT_EQ(hits(), 0u);
  ASSERT_TRUE(kit_.put(1, 2, AckLevel::kSynced));
  kit_.kill();
  open();
  EXPECT_EQ(kit_.get(1), 2u);
}

TEST_F(DevicesOpenTest, ADeviceOfAnotherStoreIsUntouched) {
  make_store();
  StoreKit other(2);
  other.add_device();
  ASSERT_TRUE(other.open()) << other.why;
  other.close();
  kit_.disks.put_back(kit_.path_of(1), other.drive(1).image());
  refused(Code::kInvalid, "another store");
}

TEST_F(DevicesOpenTest, ACopyIsRefused) {
  make_store();
  kit_.disks.put_back(kit_.path_of(1), kit_.drive(0).image());
  refused(Code::kInvalid, "one is a copy");
}

TEST_F(DevicesOpenTest, WhatIsTooSmallOrNamedTwiceIsRefused) {
  make_store();
  kit_.add_device(3);
  refused(Code::kInvalid, "too small");
  kit_.options.devices.back() = kit_.options.devices.front();
  refused(Code::kInvalid, "named twice");
}

TEST_F(DevicesOpenTest, OneDirectoryByTwoNamesIsRefused) {
  kit_.add_device();
  const DeviceOptions device = kit_.options.devices.front();
  const std::string link = kit_.options.dir + "-link";
  std::filesystem::create_directory_symlink(std::filesystem::path(device.dir).parent_path(), link);
  const std::string other = link + "/" + std::filesystem::path(device.dir).filename().string();
  kit_.options.devices.push_back({other, device.flash_bytes});
  refused(Code::kInvalid, "are the same directory");
  std::filesystem::create_directory(device.dir);
  refused(Code::kInvalid, "are the same directory");
  kit_.options.devices.assign(1, {link + "/" + std::filesystem::path(kit_.options.dir).filename().string(), 1 << 20});
  kit_.options.flash_bytes = 0;
  refused(Code::kInvalid, "is the store's own directory");
  std::filesystem::remove(link);
}

TEST_F(DevicesOpenTest, AStoreByItselfIsNotLeftBesideTheList) {
  open();
  kit_.close();
  kit_.add_device();
  kit_.options.flash_bytes = 0;
  refused(Code::kInvalid, "holds a store by itself");
}

TEST_F(DevicesOpenTest, AnotherDepotOfADeviceIsRefused) {
  make_store();
  open();
  StoreKit other(2);
  other.options.devices = kit_.options.devices;
  EXPECT_EQ(other.open().error().code, Code::kBusy);
  EXPECT_TRUE(mentions(other.why, "is in use by")) << other.why;
}

TEST_F(DevicesOpenTest, ADeviceCanBeMadeLargerAndSmaller) {
  make_store();
  kit_.options.devices.front().flash_bytes += 8 * kit_.options.segment_bytes;
  open();
  EXPECT_EQ(hits(), kRecords);
  kit_.close();
  kit_.options.devices.front().flash_bytes -= 10 * kit_.options.segment_bytes;
  open();
  EXPECT_EQ(kit_.log.count("shrinking"), 1u);
  kit_.kill();
  open();
  EXPECT_GT(hits(), kRecords / 2);
}

// ---- Stopped at each write ----

// From the nth write on, of all drives together, nothing is done any more.
class StopAt final : public io::SimObserver {
 public:
  StopAt(std::vector<io::SimDrive*> drives, std::uint64_t nth) : drives_(std::move(drives)), left_(nth) {
    for (io::SimDrive* drive : drives_) drive->observe(this);
  }
  ~StopAt() override {
    for (io::SimDrive* drive : drives_) {
      drive->observe(nullptr);
      drive->fail_all(0);
    }
  }
  void submitted(std::uint64_t, io::DiskOp::Kind kind, std::uint64_t, Bytes) override {
    if (kind != io::DiskOp::Kind::kWrite || left_ == 0 || --left_ > 0) return;
    for (io::SimDrive* drive : drives_) drive->fail_all(EIO);
  }
  void completed(std::uint64_t, io::DiskOp::Kind, bool) override {}
  [[nodiscard]] bool stopped() const noexcept { return left_ == 0; }

 private:
  std::vector<io::SimDrive*> drives_;
  std::uint64_t left_;
};

// `begun`: whether the second device is there before.
void stop_everywhere(bool begun, std::uint32_t keep_percent) {
  bool stopped = true;
  for (std::uint64_t nth = 1; stopped; ++nth) {
    SCOPED_TRACE(nth);
    StoreKit kit(nth);
    if (begun) kit.add_device();
    ASSERT_TRUE(kit.open()) << kit.why;
    for (std::uint64_t n = 0; n < 12; ++n) ASSERT_TRUE(kit.put(n, 1, AckLevel::kSynced));
    for (std::uint64_t n = 0; n < 12; n += 3) EXPECT_TRUE(kit.remove(n));
    kit.loop.run_for(Millis(100));
    const auto uuid = kit.store->uuid();
    kit.close();
    if (!begun) kit.add_device();
    for (int twice = 0; twice < 2; ++twice) {
      const StopAt stop({&kit.disks.drive(kit.options.dir + "/devices.kvd"), &kit.drive(0), &kit.drive(1)}, nth);
      const bool opened = kit.open().has_value();
      stopped = stop.stopped();
      EXPECT_TRUE(opened || stopped);
      kit.disks.lose_power({.seed = nth, .keep_percent = keep_percent});
      kit.store.reset();
    }
    ASSERT_TRUE(kit.open()) << kit.why;
    EXPECT_EQ(kit.store->uuid(), uuid);
    for (std::uint64_t n = 0; n < 12; ++n) EXPECT_EQ(kit.get(n), n % 3 == 0 ? 0u : 1u) << n;
    EXPECT_EQ(kit.log.count("begun anew") + kit.log.count("is a copy from before"),
              kit.log.count("is not in the store's list; begun anew"));
  }
}

TEST(DevicesOpenStopped, EveryWriteOfAnOpeningMayBeTheLast) {
  for (const std::uint32_t keep : {0u, 50u, 100u}) stop_everywhere(true, keep);
}

TEST(DevicesOpenStopped, EveryWriteOfTheFirstOpeningWithADeviceMoreMayBeTheLast) {
  for (const std::uint32_t keep : {0u, 50u, 100u}) stop_everywhere(false, keep);
}

}  // namespace
}  // namespace kvd::store
