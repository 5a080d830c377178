// Tests of a store of several devices seen from outside: which devices are found, what is said of those that are not,
// and that all are counted together.
#include "store/store_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "store/inventory.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

constexpr std::uint64_t kRecords = 24;

class StoreFilesTest : public ::testing::Test {
 protected:
  // A store of two devices with records of which some were removed and some replaced, written to real files.
  void SetUp() override {
    kit_.add_device();
    ASSERT_TRUE(kit_.open()) << kit_.why;
    for (std::uint64_t n = 0; n < kRecords; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
    for (std::uint64_t n = 0; n < 4; ++n) EXPECT_TRUE(kit_.remove(n));
    for (std::uint64_t n = 4; n < 8; ++n) ASSERT_TRUE(kit_.replace(n, 2, AckLevel::kWritten));
    kit_.loop.run_for(std::chrono::seconds(1));
    store_ = kit_.store->uuid();
    kit_.close();
    std::filesystem::create_directories(second());
    save();
  }
  void save() {
    copy(list_path(), list_path());
    for (std::size_t i = 0; i < 2; ++i) copy(kit_.path_of(i), kit_.path_of(i));
  }
  void copy(const std::string& drive, const std::string& path) {
    std::vector<std::byte> image(kit_.disks.drive(drive).size());
    kit_.disks.drive(drive).peek(0, image);
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(image.size()));
    ASSERT_TRUE(out.good()) << path;
  }
  // Turns a byte of each of these copies over.
  static void damage(const std::string& path, std::uint64_t stride, std::initializer_list<std::uint64_t> copies,
                     std::uint64_t at) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    for (const std::uint64_t copy : copies) {
      const auto place = static_cast<std::streamoff>(copy * stride + at);
      file.seekg(place);
      const int was = file.get();
      file.seekp(place);
      file.put(static_cast<char>(was ^ 1));
    }
    ASSERT_TRUE(file.good());
  }
  [[nodiscard]] std::string list_path() const { return kit_.options.dir + "/devices.kvd"; }
  [[nodiscard]] const std::string& first() const { return kit_.options.dir; }
  [[nodiscard]] const std::string& second() const { return kit_.options.devices[0].dir; }
  [[nodiscard]] StoreFiles files(std::vector<std::string> elsewhere = {}) const {
    std::string why;
    auto opened = StoreFiles::open(first(), elsewhere, why);
    EXPECT_TRUE(opened) << why;
    return opened ? std::move(*opened) : StoreFiles{};
  }
  static Inventory count(const StoreFiles& files) {
    return take_inventory(files.readers, [](std::uint64_t, std::uint64_t) {});
  }
  Code refusal(std::string& why) const {
    const auto opened = StoreFiles::open(first(), {}, why);
    return opened ? Code::kOk : opened.error().code;
  }

  StoreKit kit_;
  Uuid store_{};
};

TEST_F(StoreFilesTest, AllDevicesOfTheListAreFoundAndCountedTogether) {
  const StoreFiles found = files();
  EXPECT_TRUE(found.several());
  EXPECT_EQ(found.missing(), 0u);
  EXPECT_EQ(found.uuid(), store_);
  EXPECT_EQ(found.boot_epoch(), 1u);
  EXPECT_EQ(found.list_copies, 4u);
  EXPECT_EQ(found.segments(), 16u);
  EXPECT_EQ(found.path, list_path());
  EXPECT_FALSE(found.in_use());
  const Inventory inventory = count(found);
  EXPECT_EQ(inventory.segments.size(), 16u);
  EXPECT_EQ(inventory.segments[9].device, 1u);
  EXPECT_EQ(inventory.segments[9].segment, 1u);
  EXPECT_EQ(inventory.live.records, kRecords - 4) << "a removal, and a record that replaces another, counts on both";
  EXPECT_EQ(inventory.dead.records, 8u);
  for (std::uint32_t device = 0; device < 2; ++device) {
    std::uint64_t live = 0;
    for (const InventorySegment& segment : inventory.segments)
      live += segment.device == device ? segment.live.records : 0;
    EXPECT_GT(live, 4u) << device;
  }
  // Both copies of one that was replaced, wherever they lie; the newer is served.
  const auto copies = find_records(found.readers, match_key(id_of(5).key));
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_TRUE(copies[0].live);
  EXPECT_FALSE(copies[1].live);
  const auto removed = find_records(found.readers, match_key(id_of(2).key));
  ASSERT_EQ(removed.size(), 1u);
  EXPECT_FALSE(removed[0].live);
}

TEST_F(StoreFilesTest, DevicesAreKnownByIdentity) {
  std::filesystem::rename(kit_.path_of(0), first() + "/x");
  std::filesystem::rename(kit_.path_of(1), kit_.path_of(0));
  std::filesystem::rename(first() + "/x", kit_.path_of(1));
  EXPECT_EQ(count(files()).live.records, kRecords - 4);
  std::filesystem::rename(second(), second() + "-moved");
  const StoreFiles without = files();
  EXPECT_EQ(without.missing(), 1u);
  EXPECT_FALSE(without.devices[0].reader) << "that which was in the store's directory";
  EXPECT_TRUE(mentions(without.devices[0].missing, "holds another device")) << without.devices[0].missing;
  const StoreFiles all = files({second() + "-moved"});
  EXPECT_EQ(all.missing(), 0u);
  EXPECT_EQ(count(all).live.records, kRecords - 4);
}

TEST_F(StoreFilesTest, OneThatIsMissingIsNamedAndTheOtherIsRead) {
  std::filesystem::rename(second(), second() + "-moved");
  const StoreFiles found = files();
  ASSERT_EQ(found.readers.size(), 1u);
  EXPECT_TRUE(found.devices[0].reader);
  EXPECT_TRUE(mentions(found.devices[1].missing, "(last at " + second() + ") is missing: "))
      << found.devices[1].missing;
  EXPECT_FALSE(found.devices[1].damaged);
  const std::uint64_t live = count(found).live.records;
  EXPECT_GT(live, 4u);
  EXPECT_LT(live, kRecords);
}

TEST_F(StoreFilesTest, WhatIsNamedHasToBeOfTheStore) {
  StoreKit other(2);
  ASSERT_TRUE(other.open());
  other.close();
  std::vector<std::byte> image(other.drive().size());
  other.drive().peek(0, image);
  std::filesystem::create_directories(other.options.dir);
  std::ofstream(other.path_of(0), std::ios::binary)
      .write(reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(image.size()));
  std::string why;
  const auto code_of = [&](const std::string& dir) {
    const auto opened = StoreFiles::open(first(), std::vector{dir, dir}, why);
    return opened ? Code::kOk : opened.error().code;
  };
  EXPECT_EQ(code_of(second()), Code::kOk);
  EXPECT_EQ(code_of(other.options.dir), Code::kInvalid);
  EXPECT_TRUE(mentions(why, other.options.dir + ": holds no device of this store")) << why;
  EXPECT_EQ(code_of("/nonexistent"), Code::kNotFound);
  EXPECT_TRUE(mentions(why, "/nonexistent: ")) << why;
}

TEST_F(StoreFilesTest, ADevicesOwnDirectoryIsThatDevice) {
  std::string why;
  const auto found = StoreFiles::open(second(), {}, why);
  ASSERT_TRUE(found) << why;
  EXPECT_FALSE(found->several());
  EXPECT_EQ(found->readers.size(), 1u);
  EXPECT_EQ(found->readers[0].superblock().store, store_);
  EXPECT_EQ(found->missing(), 0u);
}

TEST_F(StoreFilesTest, ACopyFromBeforeAndADamagedDeviceDoNotCount) {
  ASSERT_TRUE(kit_.open());
  kit_.close();
  copy(list_path(), list_path());
  copy(kit_.path_of(0), kit_.path_of(0));  // the other one is of the opening before
  const StoreFiles old = files();
  EXPECT_EQ(old.missing(), 1u);
  EXPECT_TRUE(mentions(old.devices[1].missing, "copy from before the store's last openings")) << old.devices[1].missing;
  save();
  EXPECT_EQ(files().missing(), 0u);
  damage(kit_.path_of(1), kSuperblockStride, {0, 1, 2, 3}, 60);
  const StoreFiles lost = files();
  EXPECT_EQ(lost.missing(), 1u);
  EXPECT_TRUE(lost.devices[1].damaged);
  EXPECT_TRUE(mentions(lost.devices[1].missing, "no superblock is valid")) << lost.devices[1].missing;
}

TEST_F(StoreFilesTest, OfTheListTwoCopiesMayBeDamaged) {
  damage(list_path(), kDeviceTableStride, {1, 3}, 70);
  const StoreFiles found = files();
  EXPECT_EQ(found.missing(), 0u);
  EXPECT_EQ(found.list_copies, 2u);
  ASSERT_EQ(found.findings.size(), 2u);
  EXPECT_TRUE(mentions(found.findings[0].line(), "damage: list of devices, copy 1: ")) << found.findings[0].line();
  damage(list_path(), kDeviceTableStride, {0, 2}, 70);
  std::string why;
  EXPECT_EQ(refusal(why), Code::kCorrupt);
  EXPECT_TRUE(mentions(why, "no copy is valid: the list of devices is lost")) << why;
}

TEST_F(StoreFilesTest, AListOfANewerVersionOrOfSomethingElseIsRefused) {
  std::string why;
  for (std::uint64_t copy = 0; copy < 4; ++copy) damage(list_path(), kDeviceTableStride, {copy}, 11);
  EXPECT_EQ(refusal(why), Code::kStale) << why;
  EXPECT_TRUE(mentions(why, "newer version")) << why;
  std::ofstream(list_path()) << std::string(kDeviceTableFileBytes, 'x');
  EXPECT_EQ(refusal(why), Code::kInvalid) << why;
  EXPECT_TRUE(mentions(why, "is not a kvdepot store")) << why;
}

TEST_F(StoreFilesTest, WithoutAnyDeviceThereIsNothingToRead) {
  std::filesystem::remove_all(second());
  std::filesystem::remove(kit_.path_of(0));
  std::string why;
  EXPECT_EQ(refusal(why), Code::kNotFound);
  EXPECT_TRUE(mentions(why, "no device of it is there: device ")) << why;
}

}  // namespace
}  // namespace kvd::store
