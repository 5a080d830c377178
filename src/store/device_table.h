// The list of a store's devices: the file devices.kvd in its directory, which alone says what belongs to the store
// (docs/decisions/0008-several-devices.md; bytes: "List of devices" in docs/formats/flash-log.md).
//
// Pure functions on buffers, any thread. As in store/format.h parsers take outside bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "store/format.h"
#include "store/quorum.h"

namespace kvd::store {

inline constexpr std::size_t kDevicesMax = 16;
inline constexpr std::size_t kDevicePathMax = 192;                            // bytes
inline constexpr std::uint64_t kDeviceTableStride = std::uint64_t{64} << 10;  // between its four copies
inline constexpr std::uint64_t kDeviceTableFileBytes = 4 * kDeviceTableStride;
inline constexpr std::uint64_t kMagicDeviceTable = 0x454C'4241'5444'564B;  // "KVDTABLE"
inline constexpr std::uint64_t kStruck = ~std::uint64_t{0};

// ---- As they lie on the disk. Reserved bytes are zero. ----

struct DeviceTableHead {
  std::uint64_t magic = kMagicDeviceTable;
  std::uint32_t version = kFormatVersion;
  std::uint32_t copy = 0;
  Uuid store{};
  std::uint64_t generation = 0;
  std::uint64_t boot_epoch = 0;
  std::uint64_t segment_bytes = 0;
  std::uint32_t devices = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(DeviceTableHead) == 64 && offsetof(DeviceTableHead, generation) == 32);

struct DeviceEntry {
  Uuid uuid{};
  std::uint64_t segments = 0;
  std::uint64_t confirmed = 0;
  std::uint8_t path_bytes = 0;
  std::array<std::uint8_t, 7> reserved{};
  std::array<char, kDevicePathMax> path{};
};
static_assert(sizeof(DeviceEntry) == 232 && offsetof(DeviceEntry, path) == 40);
static_assert(sizeof(DeviceTableHead) + kDevicesMax * sizeof(DeviceEntry) <= kPageChecksumAt);

// ---- As they are used. ----

struct ListedDevice {
  Uuid uuid{};
  std::uint64_t segments = 0;
  // The last opening that wrote to it: what it holds counts if its superblock is not of an older one. 0: it was a store
  // by itself until this opening. kStruck: nothing that it holds counts any more, but its place is not free.
  std::uint64_t confirmed = 0;
  std::string path;  // of its directory, where it was last; at most kDevicePathMax bytes
  friend bool operator==(const ListedDevice&, const ListedDevice&) = default;
};

struct DeviceTable {
  Uuid store{};
  std::uint64_t generation = 0;     // grows with each rewrite
  std::uint64_t boot_epoch = 0;     // of the last opening; no superblock of a member is of a later one
  std::uint64_t segment_bytes = 0;  // on all devices
  std::vector<ListedDevice> devices;
  friend bool operator==(const DeviceTable&, const DeviceTable&) = default;
};

// `page` is one page. Requires at most kDevicesMax devices.
void encode_device_table(MutableBytes page, const DeviceTable& table, std::uint32_t copy) noexcept;
// kCorrupt: none, or damaged; kStale: of a newer version, told by the first 16 bytes alone.
Result<DeviceTable> parse_device_table(Bytes page, std::uint32_t copy);

using DeviceTableScan = CopiesScan<DeviceTable, kMagicDeviceTable, parse_device_table>;

}  // namespace kvd::store
