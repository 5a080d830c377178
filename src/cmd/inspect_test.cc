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
