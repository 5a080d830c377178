// Tests of looking into a store from outside: what is told agrees with what was stored, whatever is damaged is found,
// nothing is changed, and what is no store or not ours to read is refused in one line.
#include "store/store_reader.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "store/inventory.h"
#include "store/segment_scan.h"
#include "store/testing/store_kit.h"
#include "store/verify.h"

namespace kvd::store {
namespace {

namespace fs = std::filesystem;

std::string fmt_key(const Descriptor& d) { return fmt::format("{:016x}{:016x}", d.key_hi, d.key_lo); }

class StoreReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    kit_.options.flash_bytes = kHeadBytes + 16 * kit_.options.segment_bytes;
    ASSERT_TRUE(kit_.open()) << kit_.why;
  }
  void put_all(std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t n = first; n < last; ++n) ASSERT_TRUE(kit_.put(n, 1, AckLevel::kWritten)) << n;
  }
  [[nodiscard]] std::string file() const { return kit_.options.dir + "/flash.kvd"; }
  // What the simulated drive holds becomes the real file.
  void save() {
    kit_.store.reset();
    std::vector<std::byte> image(kit_.drive().size());
    kit_.drive().peek(0, image);
    write(image);
    image_ = std::move(image);
  }
  void write(std::span<const std::byte> bytes) const {
    std::ofstream out(file(), std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(out.good());
  }
  [[nodiscard]] StoreReader reader() const {
    std::string why;
    auto opened = StoreReader::open(kit_.options.dir, why);
    EXPECT_TRUE(opened) << why;
    return std::move(*opened);
  }
  [[nodiscard]] VerifyReport verify() const {
    return verify_store(reader(), 2, [](std::uint64_t, std::uint64_t) {});
  }
  [[nodiscard]] Inventory inventory() const {
    return take_inventory(reader(), [](std::uint64_t, std::uint64_t) {});
  }
  // The error of opening, and its line.
  Code refusal(std::string& why) const {
    const auto opened = StoreReader::open(kit_.options.dir, why);
    EXPECT_FALSE(opened);
    return opened ? Code::kOk : opened.error().code;
  }
  // Verifies with one bit turned over at `at`.
  VerifyReport verify_flipped(std::uint64_t at) const {
    poke(at, image_[at] ^ std::byte{0x10});
    auto report = verify();
    poke(at, image_[at]);
    return report;
  }
  void poke(std::uint64_t at, std::byte value) const {
    std::fstream out(file(), std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(at));
    out.put(static_cast<char>(value));
    ASSERT_TRUE(out.flush().good());
  }

  StoreKit kit_;
  std::vector<std::byte> image_;
};

TEST_F(StoreReaderTest, TellsWhatWasStored) {
  put_all(0, 20);
  kit_.remove(3);
  kit_.close();
  save();
  const Inventory found = inventory();
  EXPECT_EQ(found.live.records, 19u);
  EXPECT_EQ(found.dead.records, 1u) << "the removed one is on flash until its segment goes";
  EXPECT_EQ(found.tombstones, 1u);
  EXPECT_EQ(found.ignored, 0u);
  EXPECT_TRUE(found.findings.empty());
  constexpr std::uint64_t kImage = 36 << 10;
  EXPECT_EQ(found.live.bytes, 19 * kImage);
  EXPECT_EQ(found.sizes[15].records, 19u) << "32 to 64 KiB";
  ASSERT_EQ(found.namespaces.size(), 1u);
  EXPECT_EQ(found.namespaces[0].name.fingerprint, "model");
  EXPECT_EQ(found.namespaces[0].live.records, 19u);
  ASSERT_EQ(found.namespaces[0].groups.size(), 1u);
  EXPECT_EQ(found.namespaces[0].groups[0].slab_bytes, 5'000u);
  std::uint64_t live = 0;
  for (const auto& segment : found.segments) live += segment.live.records;
  EXPECT_EQ(live, 19u);
  EXPECT_EQ(found.kinds[static_cast<std::size_t>(SegmentKind::kFree)] +
                found.kinds[static_cast<std::size_t>(SegmentKind::kSealed)],
            16u);
}

TEST_F(StoreReaderTest, AgesCountOpeningsAndSegments) {
  put_all(0, 8);
  ASSERT_TRUE(kit_.reopen());
  ASSERT_TRUE(kit_.reopen());
  put_all(8, 16);
  kit_.close();
  save();
  std::vector<InventorySegment> used;
  for (const auto& segment : inventory().segments)
    if (segment.live.records > 0) used.push_back(segment);
  ASSERT_GE(used.size(), 2u);
  std::ranges::sort(used, {}, &InventorySegment::generation);
  EXPECT_EQ(used.front().openings_ago, 2u);
  EXPECT_EQ(used.back().openings_ago, 0u);
  EXPECT_GT(used.front().newer_segments, used.back().newer_segments);
}

TEST_F(StoreReaderTest, FindsARecordAndGivesItsBytes) {
  put_all(0, 5);
  kit_.remove(2);
  kit_.close();
  save();
  const StoreReader reader = this->reader();
  const auto removed = find_records(reader, match_key(id_of(2).key));
  ASSERT_EQ(removed.size(), 1u);
  EXPECT_FALSE(removed[0].live);
  EXPECT_TRUE(find_records(reader, match_key(id_of(77).key)).empty());
  const auto found = find_records(reader, match_key(id_of(4).key));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0].live);
  std::vector<std::byte> image(found[0].descriptor.length);
  const auto at = reader.offset_of(found[0].segment, found[0].descriptor.offset);
  std::ranges::copy(Bytes(image_).subspan(at, image.size()), image.begin());
  const auto record = check_record(image, found[0].descriptor, found[0].content);
  ASSERT_TRUE(record);
  EXPECT_TRUE(std::ranges::equal(record->foreign, foreign_of(4)));
  for (std::uint32_t layer = 0; layer < 4; ++layer)
    EXPECT_TRUE(slab_is(Bytes(image).subspan(record->shape.slab_offset(layer), 5'000), 4, 1, layer));
  image[record->shape.slab_offset(3) + 4'999] ^= std::byte{1};
  EXPECT_EQ(check_record(image, found[0].descriptor, found[0].content).error().code, Code::kCorrupt);
}

TEST_F(StoreReaderTest, AnIntactStoreVerifiesAndStaysAsItIs) {
  put_all(0, 30);
  kit_.close();
  save();
  const auto before = fs::last_write_time(file());
  const VerifyReport report = verify();
  EXPECT_EQ(report.damages(), 0u);
  EXPECT_TRUE(report.findings.empty());
  EXPECT_EQ(report.records, 30u);
  EXPECT_EQ(report.bytes, 30u * (36 << 10));
  EXPECT_EQ(fs::last_write_time(file()), before);
}

TEST_F(StoreReaderTest, EveryByteThatIsReadIsVerified) {
  put_all(0, 12);
  kit_.close();
  save();
  const StoreReader reader = this->reader();
  std::uint64_t flips = 0;
  for (std::uint32_t s = 0; s < reader.segments(); ++s) {
    const SegmentReport segment = read_segment(reader, s, false);
    if (segment.footer.content.descriptors.empty()) continue;
    const std::uint64_t start = reader.offset_of(s), end = start + reader.segment_bytes();
    std::vector<std::uint64_t> places{start + 3, start + 33, start + 2000, end - 1, end - 60, end - 50, end - 900};
    places.push_back(start + kPageBytes + 200);  // the first frame's tables
    for (const Descriptor& d : segment.footer.content.descriptors) {
      const std::uint64_t image = start + std::uint64_t{d.offset} * kPageBytes;
      places.insert(places.end(), {image + 5, image + kPageBytes, image + kPageBytes + 4'999});
    }
    for (const std::uint64_t at : places) {
      EXPECT_GE(verify_flipped(at).damages(), 1u) << "segment " << s << " byte " << at - start;
      ++flips;
    }
  }
  EXPECT_GT(flips, 30u);
  for (std::uint32_t copy = 0; copy < kSuperblockCopies; ++copy)
    EXPECT_EQ(verify_flipped(copy * kSuperblockStride + 40).damages(), 1u) << copy;
}

TEST_F(StoreReaderTest, DamageIsContainedAndNamed) {
  put_all(0, 12);
  kit_.close();
  save();
  const auto found = find_records(reader(), match_key(id_of(7).key));
  ASSERT_EQ(found.size(), 1u);
  const auto at = reader().offset_of(found[0].segment, found[0].descriptor.offset);
  const VerifyReport report = verify_flipped(at + 2 * kPageBytes);
  EXPECT_EQ(report.records, 12u);
  EXPECT_EQ(report.records_damaged, 1u);
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].segment, found[0].segment);
  EXPECT_TRUE(mentions(report.findings[0].what, fmt_key(found[0].descriptor))) << report.findings[0].what;
}

TEST_F(StoreReaderTest, WhatACrashLeavesIsNoDamage) {
  put_all(0, 9);
  kit_.kill();
  save();
  const VerifyReport report = verify();
  EXPECT_EQ(report.damages(), 0u);
  EXPECT_EQ(report.records, 9u);
  EXPECT_TRUE(std::ranges::any_of(report.findings, [](const Finding& f) { return mentions(f.what, "no footer"); }));
  EXPECT_EQ(inventory().live.records, 9u);
}

TEST_F(StoreReaderTest, AFullStoreThatHasBeenOverwrittenVerifies) {
  put_all(0, 200);  // several times around
  kit_.close();
  save();
  const VerifyReport report = verify();
  EXPECT_EQ(report.damages(), 0u);
  ASSERT_TRUE(kit_.open());
  EXPECT_EQ(inventory().live.records, kit_.stats().recovered_records.value());
}

TEST_F(StoreReaderTest, ACutFileIsDamage) {
  put_all(0, 30);
  kit_.close();
  save();
  fs::resize_file(file(), kHeadBytes + 2 * kit_.options.segment_bytes);
  const VerifyReport report = verify();
  EXPECT_GT(report.damages(), 1u);
  EXPECT_TRUE(mentions(report.findings.front().what, "it was cut"));
  EXPECT_EQ(inventory().kinds[static_cast<std::size_t>(SegmentKind::kMissing)], 14u);
}

TEST_F(StoreReaderTest, RefusesWhatIsNoStoreInOneLine) {
  std::string why;
  kit_.store.reset();
  fs::remove(file());
  EXPECT_EQ(refusal(why), Code::kNotFound);
  EXPECT_TRUE(mentions(why, "holds no flash.kvd")) << why;
  write({});
  EXPECT_EQ(refusal(why), Code::kInvalid);
  EXPECT_TRUE(mentions(why, "is empty")) << why;
  write(std::vector<std::byte>(kHeadBytes, std::byte{7}));
  EXPECT_EQ(refusal(why), Code::kInvalid);
  EXPECT_TRUE(mentions(why, "is not a kvdepot store")) << why;
  fs::remove_all(kit_.options.dir);
  EXPECT_EQ(refusal(why), Code::kNotFound);
  std::ofstream(kit_.options.dir) << "a file";
  EXPECT_EQ(refusal(why), Code::kNotFound);
}

TEST_F(StoreReaderTest, RefusesANewerVersionAndTellsALostStore) {
  kit_.close();
  save();
  auto newer = image_;
  for (std::uint32_t copy = 0; copy < kSuperblockCopies; ++copy)
    newer[copy * kSuperblockStride + 8] = std::byte{kFormatVersion + 1};
  write(newer);
  std::string why;
  EXPECT_EQ(refusal(why), Code::kStale);
  EXPECT_TRUE(mentions(why, "newer version")) << why;
  auto lost = image_;
  for (std::uint32_t copy = 0; copy < kSuperblockCopies; ++copy) lost[copy * kSuperblockStride + 100] = std::byte{1};
  write(lost);
  EXPECT_EQ(refusal(why), Code::kCorrupt);
}

TEST_F(StoreReaderTest, TellsWhoUsesTheDirectoryAndKeepsOthersOut) {
  put_all(0, 3);
  std::vector<std::byte> image(kit_.drive().size());
  kit_.drive().peek(0, image);
  write(image);
  {
    const StoreReader busy = reader();
    EXPECT_TRUE(busy.in_use());
    EXPECT_EQ(busy.holder(), "process " + std::to_string(::getpid()));
  }
  kit_.close();
  save();
  const StoreReader alone = reader();
  EXPECT_FALSE(alone.in_use());
  EXPECT_EQ(kit_.open().error().code, Code::kBusy) << "no depot starts under a reader";
}

}  // namespace
}  // namespace kvd::store
