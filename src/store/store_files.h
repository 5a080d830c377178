// StoreFiles: all that a store has on its drives, opened for reading as StoreReader does: the one file of a store of
// one device, or those of all devices that its list names. What a directory holds by itself is told apart: of a
// device's own directory that device.
//
// Devices are known by identity, as a depot knows them: they are looked for where the list says, in whatever order, and
// in other directories that are named. open() blocks and changes nothing.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "store/device_table.h"
#include "store/segment_report.h"
#include "store/store_reader.h"

namespace kvd::store {

// A device of the list.
struct StoreFile {
  ListedDevice listed;
  std::optional<std::size_t> reader;  // which of the readers; nothing: it is not there, or holds nothing that counts
  std::string missing;                // what was found instead: a line
  bool damaged = false;               // what lies in its place is a device whose superblocks are damaged
};

struct StoreFiles {
  // Of a store of several devices, or one of one device that had several; `list.devices` without those that the store
  // has given up.
  std::optional<DeviceTable> list;
  std::vector<StoreFile> devices;    // as the list has them; empty without a list
  std::vector<StoreReader> readers;  // of those that are there; without a list one
  std::vector<Finding> findings;     // of the list itself
  std::string path;                  // of the list, or of the one file
  std::uint32_t list_copies = 0;     // that agree

  [[nodiscard]] bool several() const noexcept { return list.has_value(); }
  [[nodiscard]] std::size_t missing() const noexcept { return devices.size() - (several() ? readers.size() : 0); }
  [[nodiscard]] bool in_use() const noexcept;
  [[nodiscard]] std::string holder() const;
  // Sums over the readers.
  [[nodiscard]] std::uint64_t segments() const noexcept;
  [[nodiscard]] std::uint64_t file_bytes() const noexcept;
  // What all have alike.
  [[nodiscard]] std::uint64_t segment_bytes() const noexcept;
  [[nodiscard]] std::uint64_t boot_epoch() const noexcept;
  [[nodiscard]] const Uuid& uuid() const noexcept;
  [[nodiscard]] std::uint32_t version() const noexcept {
    return readers.empty() ? kFormatVersion : readers.front().superblock().version;
  }

  // The store in `dir`; `elsewhere`: directories where devices may be that are not where the list says. On error `why`
  // is one line that says what is wrong and what to do, as StoreReader::open(), also of `elsewhere`; kCorrupt: or no
  // copy of the list is valid; kNotFound: or no device of the list is there; kInvalid: or one of `elsewhere` is not of
  // this store.
  static Result<StoreFiles> open(const std::string& dir, std::span<const std::string> elsewhere, std::string& why);
};

}  // namespace kvd::store
