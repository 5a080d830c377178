// Tests of the verbs inspect and verify: what they print, and with which exit status they end.
#include "cmd/inspect.h"

#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cmd/inspect_report.h"
#include "cmd/progress_bar.h"
#include "store/testing/store_kit.h"

namespace kvd::cmd {
namespace {

using store::mentions;
using store::StoreKit;

constexpr std::uint64_t kRecords = 12;

class InspectTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(kit_.open()) << kit_.why;
    for (std::uint64_t n = 0; n < kRecords; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten));
    kit_.close();
    std::vector<std::byte> image(kit_.drive().size());
    kit_.drive().peek(0, image);
    std::ofstream out(file(), std::ios::binary);
    out.write(reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(image.size()));
  }
  [[nodiscard]] std::string file() const { return kit_.options.dir + "/flash.kvd"; }
  [[nodiscard]] InspectFlags flags() const {
    InspectFlags all;
    all.dir = kit_.options.dir;
    return all;
  }
  // Runs a verb; its exit status, and what it printed in out_ and err_.
  template <class Run>
  int run(Run verb) {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int status = verb();
    out_ = ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return status;
  }
  int verify(bool json = false) {
    return run([&] { return run_verify({.dir = kit_.options.dir, .threads = 2, .json = json}); });
  }
  int inspect(const InspectFlags& how) {
    return run([&] { return run_inspect(how); });
  }
  static std::string key_of(std::uint64_t number) {
    const Key key = store::id_of(number).key;
    return fmt::format("{:016x}{:016x}", key.hi, key.lo);
  }

  StoreKit kit_;
  std::string out_, err_;
};

TEST_F(InspectTest, TellsGeometryAndContentForPeopleAndAsJson) {
  EXPECT_EQ(inspect(flags()), 0);
  for (const char* part : {"8 segments of 256KiB", "4 of 4 superblock copies", "12 live, 0 dead", "default / model",
                           "group 0: 4 slabs of 4.9KiB", "from    32KiB           12 records", "opening 1"})
    EXPECT_TRUE(mentions(out_, part)) << part << "\n" << out_;
  auto how = flags();
  how.segments = true;
  EXPECT_EQ(inspect(how), 0);
  EXPECT_TRUE(mentions(out_, "sealed")) << out_;
  how.json = true;
  EXPECT_EQ(inspect(how), 0);
  const auto json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["live"]["records"], kRecords);
  EXPECT_EQ(json["tenants"]["default"]["records"], kRecords);
  EXPECT_EQ(json["segment_bytes"], 256 << 10);
  EXPECT_EQ(json["in_use"], false);
  EXPECT_EQ(json["record_sizes"][0]["from_bytes"], 32 << 10);
  EXPECT_TRUE(json["findings"].empty());
}

TEST_F(InspectTest, ExtractsARecord) {
  auto how = flags();
  how.record = key_of(5);
  EXPECT_EQ(inspect(how), 0);
  EXPECT_TRUE(mentions(out_, "live, 4 slabs of 4.9KiB")) << out_;
  how.out = kit_.dir.path() + "/record.bin";
  EXPECT_EQ(inspect(how), 0) << err_;
  std::ifstream in(how.out, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  ASSERT_EQ(bytes.size(), 4u * 5'000);
  for (std::uint32_t layer = 0; layer < 4; ++layer)
    EXPECT_TRUE(store::slab_is(as_bytes(bytes).subspan(layer * std::size_t{5'000}, 5'000), 5, 1, layer));
  EXPECT_EQ(std::filesystem::status(how.out).permissions() & std::filesystem::perms::mask,
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  how.record.clear();
  EXPECT_EQ(inspect(how), 2) << "--out alone";
  how.foreign = show_opaque(std::string(as_text(store::foreign_of(5))));
  EXPECT_EQ(inspect(how), 2) << "the records of this store have keys of their own";
  how.foreign = "abc";
  EXPECT_EQ(inspect(how), 2);
  EXPECT_TRUE(mentions(err_, "even number")) << err_;
  how.foreign.clear();
  how.record = key_of(99);
  EXPECT_EQ(inspect(how), 2);
  EXPECT_TRUE(mentions(err_, "no such record")) << err_;
  how.record = "xyz";
  EXPECT_EQ(inspect(how), 2);
  EXPECT_TRUE(mentions(err_, "32 hexadecimal digits")) << err_;
}

TEST_F(InspectTest, VerifyEndsWithOneAndAListOnDamage) {
  EXPECT_EQ(verify(), 0);
  EXPECT_TRUE(mentions(out_, "12 records in")) << out_;
  EXPECT_TRUE(mentions(out_, "intact")) << out_;
  std::string why;
  {
    const auto reader = store::StoreReader::open(kit_.options.dir, why);
    ASSERT_TRUE(reader) << why;
    const auto found = store::find_records(*reader, store::match_key(store::id_of(5).key));
    ASSERT_EQ(found.size(), 1u);
    std::fstream patch(file(), std::ios::binary | std::ios::in | std::ios::out);
    patch.seekp(static_cast<std::streamoff>(reader->offset_of(found[0].segment, found[0].descriptor.offset + 1)));
    patch << "damage";
  }
  EXPECT_EQ(verify(), 1);
  EXPECT_TRUE(mentions(out_, "record " + key_of(5))) << out_;
  EXPECT_TRUE(mentions(out_, "1 damages, 1 records lost")) << out_;
  EXPECT_EQ(verify(true), 1);
  const auto json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["intact"], false);
  EXPECT_EQ(json["records_damaged"], 1);
  EXPECT_EQ(json["damages"].size(), 1u);
  auto how = flags();
  how.record = key_of(5);
  how.out = kit_.dir.path() + "/record.bin";
  EXPECT_EQ(inspect(how), 1);
  EXPECT_FALSE(std::filesystem::exists(how.out));
}

// ---- A store of several devices ----

class InspectDevicesTest : public InspectTest {
 protected:
  void SetUp() override {
    kit_.add_device();
    InspectTest::SetUp();
    std::filesystem::create_directories(second());
    save(kit_.options.dir + "/devices.kvd");
    save(kit_.path_of(1));
  }
  void save(const std::string& path) {
    std::vector<std::byte> image(kit_.disks.drive(path).size());
    kit_.disks.drive(path).peek(0, image);
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(image.size()));
  }
  [[nodiscard]] const std::string& second() const { return kit_.options.devices[0].dir; }
};

TEST_F(InspectDevicesTest, AllAreShownAndCounted) {
  auto how = flags();
  how.segments = true;
  EXPECT_EQ(inspect(how), 0) << err_;
  for (const std::string& part :
       {std::string(" of 2 devices, format 1, opening 1\n"), "  device 0   " + file() + ": ",
        "  device 1   " + second() + "/flash.kvd: ", std::string("16 segments of 256KiB"),
        std::string("4 of 4 copies of the list agree"), std::string("12 live, 0 dead"), std::string("\n     1:0 ")})
    EXPECT_TRUE(mentions(out_, part)) << part << "\n" << out_;
  how.json = true;
  EXPECT_EQ(inspect(how), 0);
  const auto json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["path"], kit_.options.dir + "/devices.kvd");
  EXPECT_EQ(json["live"]["records"], kRecords);
  ASSERT_EQ(json["devices"].size(), 2u);
  EXPECT_EQ(json["devices"][1]["last_at"], second());
  const std::uint64_t first = json["devices"][0]["live"]["records"], other = json["devices"][1]["live"]["records"];
  EXPECT_EQ(first + other, kRecords);
  EXPECT_GT(other, 0u);
  EXPECT_EQ(json["list_copies"], 4);
  how = flags();
  for (std::uint64_t n = 0; n < kRecords; ++n) {  // on whichever it lies
    how.record = key_of(n);
    how.out = kit_.dir.path() + "/record.bin";
    EXPECT_EQ(inspect(how), 0) << err_;
    EXPECT_TRUE(mentions(out_, ", device ")) << out_;
    std::ifstream in(how.out, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), {});
    EXPECT_TRUE(store::slab_is(as_bytes(bytes).first(5'000), n, 1, 0)) << n;
  }
}

TEST_F(InspectDevicesTest, VerifyReadsAllAndEndsWithTwoWhereOneIsMissing) {
  EXPECT_EQ(verify(), 0) << out_ << err_;
  EXPECT_TRUE(mentions(out_, "12 records in")) << out_;
  EXPECT_TRUE(mentions(out_, "segments of 2 devices verified")) << out_;
  std::filesystem::rename(second(), second() + "-away");
  EXPECT_EQ(verify(), 2);
  EXPECT_TRUE(mentions(out_, "missing: device ")) << out_;
  EXPECT_TRUE(mentions(out_, "segments of 1 devices verified")) << out_;
  EXPECT_TRUE(mentions(out_, "intact, but 1 devices are missing")) << out_;
  EXPECT_TRUE(mentions(err_, "1 of 2 devices are missing: attach them")) << err_;
  EXPECT_EQ(verify(true), 2);
  const auto json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["intact"], false);
  EXPECT_EQ(json["missing"].size(), 1u);
  EXPECT_EQ(inspect(flags()), 0);
  EXPECT_TRUE(mentions(out_, "\n  missing    device ")) << out_;
  auto how = flags();
  how.devices = {second() + "-away"};
  EXPECT_EQ(inspect(how), 0);
  EXPECT_FALSE(mentions(out_, "missing")) << out_;
  EXPECT_EQ(run([&] { return run_verify({.dir = kit_.options.dir, .devices = how.devices, .threads = 2}); }), 0);
}

TEST_F(InspectDevicesTest, VerifyNamesTheDeviceOfADamage) {
  std::string why;
  std::uint64_t at = 0, number = kRecords;
  {
    const auto reader = store::StoreReader::open(second(), why);
    ASSERT_TRUE(reader) << why;
    while (at == 0 && number-- > 0)
      for (const auto& found : store::find_records(*reader, store::match_key(store::id_of(number).key)))
        at = reader->offset_of(found.segment, found.descriptor.offset + 1);
  }
  ASSERT_GT(at, 0u);
  std::fstream patch(second() + "/flash.kvd", std::ios::binary | std::ios::in | std::ios::out);
  patch.seekp(static_cast<std::streamoff>(at));
  patch << "damage" << std::flush;
  EXPECT_EQ(verify(), 1);
  EXPECT_TRUE(mentions(out_, "damage: " + second() + "/flash.kvd: segment ")) << out_;
  EXPECT_TRUE(mentions(out_, "record " + key_of(number))) << out_;
  EXPECT_EQ(verify(true), 1);
  EXPECT_EQ(nlohmann::json::parse(out_)["damages"][0]["device"], second() + "/flash.kvd");
}

TEST_F(InspectDevicesTest, ADevicesOwnDirectoryIsThatDevice) {
  auto how = flags();
  how.dir = second();
  EXPECT_EQ(inspect(how), 0);
  EXPECT_TRUE(mentions(out_, "8 segments of 256KiB")) << out_;
  EXPECT_TRUE(mentions(out_, "note       one device of store ")) << out_;
  how.json = true;
  EXPECT_EQ(inspect(how), 0);
  EXPECT_TRUE(nlohmann::json::parse(out_).contains("device_of"));
  EXPECT_EQ(run([&] { return run_verify({.dir = second(), .threads = 2}); }), 0);
}

TEST_F(InspectDevicesTest, ALostListIsDamage) {
  std::ofstream(kit_.options.dir + "/devices.kvd") << "KVDTABLE" << std::string(256 << 10, '\0');
  EXPECT_EQ(verify(), 1);
  EXPECT_TRUE(mentions(out_, "damage: ") && mentions(out_, "the list of devices is lost")) << out_;
  EXPECT_EQ(inspect(flags()), 2);
}

TEST_F(InspectTest, ADirectoryInUseIsNotVerifiedButInspected) {
  ASSERT_TRUE(kit_.open());
  EXPECT_EQ(verify(), 2);
  EXPECT_TRUE(mentions(err_, "is in use by process")) << err_;
  EXPECT_EQ(inspect(flags()), 0);
  EXPECT_TRUE(mentions(out_, "in use by process")) << out_;
}

TEST_F(InspectTest, WhatIsNoStoreIsRefusedAndALostOneIsDamage) {
  std::filesystem::resize_file(file(), 100);
  EXPECT_EQ(verify(), 2);
  EXPECT_TRUE(mentions(err_, "is empty")) << err_;
  std::ofstream(file(), std::ios::binary) << std::string(8 << 20, 'x');
  EXPECT_EQ(verify(), 2);
  EXPECT_TRUE(mentions(err_, "is not a kvdepot store")) << err_;
  std::ofstream(file(), std::ios::binary) << "KVDSUPER" << '\1' << std::string(8 << 20, '\0');
  EXPECT_EQ(verify(), 1);
  EXPECT_TRUE(mentions(out_, "no superblock is valid")) << out_;
}

TEST(ShowOpaque, PrintsWhatCanBePrinted) {
  EXPECT_EQ(show_opaque("llama-3"), "llama-3");
  EXPECT_EQ(show_opaque(std::string("\0\xff", 2)), "00ff");
}

TEST(ProgressBar, FillsWithTheShare) {
  EXPECT_EQ(ProgressBar::line("verify", 0), "verify [" + std::string(40, '.') + "]   0 %");
  EXPECT_EQ(ProgressBar::line("verify", 100), "verify [" + std::string(40, '#') + "] 100 %");
}

}  // namespace
}  // namespace kvd::cmd
