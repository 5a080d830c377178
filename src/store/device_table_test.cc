// Tests of the list of devices: its bytes, what of them is believed, which copy is in force.
#include "store/device_table.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

namespace kvd::store {
namespace {

using TablePage = std::array<std::byte, kPageBytes>;

Uuid identity(std::uint8_t first) {
  Uuid uuid{};
  uuid[0] = std::byte{first};
  return uuid;
}

DeviceTable table_of(std::size_t devices, std::uint64_t generation = 3) {
  DeviceTable table{identity(1), generation, 7, kSegmentBytesMin, {}};
  for (std::size_t i = 0; i < devices; ++i)
    table.devices.push_back({identity(static_cast<std::uint8_t>(i + 2)), 10 + i, i, std::string(12 * i, 'p')});
  return table;
}

TablePage encoded(const DeviceTable& table, std::uint32_t copy = 0) {
  TablePage page;
  encode_device_table(page, table, copy);
  return page;
}

// Changes one value of a good page and makes its checksum right again.
template <class T>
Code code_with(std::size_t at, T value) {
  TablePage page = encoded(table_of(2));
  save(page.data() + at, value);
  seal_page(page, kMagicDeviceTable);
  const auto parsed = parse_device_table(page, 0);
  return parsed ? Code::kOk : parsed.error().code;
}

TEST(DeviceTable, IsReadAsItWasWritten) {
  for (const std::size_t devices : {std::size_t{0}, std::size_t{1}, kDevicesMax}) {
    const auto parsed = parse_device_table(encoded(table_of(devices), 3), 3);
    ASSERT_TRUE(parsed) << devices;
    EXPECT_EQ(*parsed, table_of(devices));
  }
  DeviceTable longest = table_of(1);
  longest.devices[0].path = std::string(kDevicePathMax, 'x');
  longest.devices[0].confirmed = kStruck;
  EXPECT_EQ(*parse_device_table(encoded(longest), 0), longest);
}

TEST(DeviceTable, AnyBitThatIsWrongIsFound) {
  TablePage page = encoded(table_of(3), 2);
  EXPECT_EQ(parse_device_table(page, 1).error().code, Code::kCorrupt) << "another copy's place";
  EXPECT_EQ(parse_device_table(Bytes(page).first(512), 2).error().code, Code::kCorrupt);
  for (std::size_t bit = 0; bit < kPageBytes * 8; ++bit) {
    page[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    EXPECT_FALSE(parse_device_table(page, 2)) << bit;
    page[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
  }
}

TEST(DeviceTable, WhatCannotBeIsDamageWhateverItsChecksumSays) {
  EXPECT_EQ(code_with(48, std::uint64_t{kSegmentBytesMin}), Code::kOk);
  EXPECT_EQ(code_with(48, std::uint64_t{kSegmentBytesMin + 1}), Code::kCorrupt) << "segment_bytes";
  EXPECT_EQ(code_with(56, std::uint32_t{kDevicesMax + 1}), Code::kCorrupt) << "devices";
  EXPECT_EQ(code_with(64 + 16, std::uint64_t{kSegmentsMax + 1}), Code::kCorrupt) << "segments";
  EXPECT_EQ(code_with(64 + 32, std::uint8_t{kDevicePathMax + 1}), Code::kCorrupt) << "path_bytes";
  EXPECT_EQ(code_with(8, std::uint32_t{0}), Code::kCorrupt) << "version";
}

TEST(DeviceTable, ANewerVersionIsStaleWithAnyChecksum) {
  TablePage page = encoded(table_of(1));
  save(page.data() + 8, kFormatVersion + 1);
  EXPECT_EQ(parse_device_table(page, 0).error().code, Code::kStale);
}

// As of superblocks, whose tests go through the rules.
TEST(DeviceTable, TheNewestThatTwoCopiesHoldIsInForce) {
  DeviceTableScan scan;
  scan.take(0, encoded(table_of(2, 9), 0));
  scan.take(1, encoded(table_of(3, 8), 1));
  scan.take(2, encoded(table_of(3, 8), 2));
  const auto verdict = scan.verdict();
  EXPECT_EQ(verdict.kind, CopiesKind::kValid);
  EXPECT_EQ(verdict.in_force, table_of(3, 8));
  EXPECT_EQ(verdict.copies, 2U);
  DeviceTableScan torn;
  TablePage page{};
  save(page.data(), kMagicDeviceTable);
  torn.take(0, page);
  EXPECT_EQ(torn.verdict().kind, CopiesKind::kLost);
}

}  // namespace
}  // namespace kvd::store
