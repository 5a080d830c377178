#include "store/device_table.h"

#include <algorithm>

#include "base/check.h"

namespace kvd::store {

void encode_device_table(MutableBytes page, const DeviceTable& table, std::uint32_t copy) noexcept {
  KVD_CHECK(page.size() == kPageBytes && table.devices.size() <= kDevicesMax);
  std::memset(page.data(), 0, page.size());
  DeviceTableHead head;
  head.copy = copy;
  head.store = table.store;
  head.generation = table.generation;
  head.boot_epoch = table.boot_epoch;
  head.segment_bytes = table.segment_bytes;
  head.devices = static_cast<std::uint32_t>(table.devices.size());
  save(page.data(), head);
  std::byte* at = page.data() + sizeof head;
  for (const ListedDevice& device : table.devices) {
    KVD_CHECK(device.path.size() <= kDevicePathMax);
    DeviceEntry entry;
    entry.uuid = device.uuid;
    entry.segments = device.segments;
    entry.confirmed = device.confirmed;
    entry.path_bytes = static_cast<std::uint8_t>(device.path.size());
    std::ranges::copy(device.path, entry.path.begin());
    save(at, entry);
    at += sizeof entry;
  }
  seal_page(page, kMagicDeviceTable);
}

Result<DeviceTable> parse_device_table(Bytes page, std::uint32_t copy) {
  if (page.size() != kPageBytes) return fail(Code::kCorrupt, "list of devices has the wrong size");
  const auto head = load<DeviceTableHead>(page.data());
  if (head.magic != kMagicDeviceTable) return fail(Code::kCorrupt, "not a list of devices");
  if (head.version > kFormatVersion) return fail(Code::kStale, "the list of devices is of a newer version of kvdepot");
  if (!page_checksum_ok(page, kMagicDeviceTable) || head.copy != copy)
    return fail(Code::kCorrupt, "list of devices fails its checksum");
  if (head.version != kFormatVersion || head.devices > kDevicesMax || !segment_bytes_ok(head.segment_bytes))
    return fail(Code::kCorrupt, "list of devices is not possible");
  DeviceTable table{head.store, head.generation, head.boot_epoch, head.segment_bytes, {}};
  const std::byte* at = page.data() + sizeof head;
  for (std::uint32_t i = 0; i < head.devices; ++i, at += sizeof(DeviceEntry)) {
    const auto entry = load<DeviceEntry>(at);
    if (entry.path_bytes > kDevicePathMax || entry.segments > kSegmentsMax)
      return fail(Code::kCorrupt, "entry in the list of devices is not possible");
    table.devices.push_back(
        {entry.uuid, entry.segments, entry.confirmed, std::string(entry.path.data(), entry.path_bytes)});
  }
  return table;
}

}  // namespace kvd::store
