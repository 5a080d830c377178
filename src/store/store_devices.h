// Which devices a store uses: what its list says, what lies where the options point, and what follows from both
// (docs/decisions/0008-several-devices.md, "The store's directory is the authority" and after).
//
// Looking changes nothing and blocks: it runs the loop. Planning is pure.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "store/device_table.h"
#include "store/found_file.h"
#include "store/superblocks.h"

namespace kvd::store {

// What lies in a directory that is to hold a device.
struct DeviceFound {
  std::string dir;   // absolute: the list's paths are compared with it
  bool own = false;  // the store's own directory, --dir
  FoundFile<Superblock> file;
};

FoundFile<DeviceTable> look_at_list(io::Loop& loop, io::DiskFactory& disks, const std::string& dir, bool force_threads);
DeviceFound look_at_device(io::Loop& loop, io::DiskFactory& disks, const std::string& dir, bool own,
                           bool force_threads);

// One device of the store.
struct DevicePlace {
  ListedDevice device;               // without identity: a new one, not to be listed before it has one
  std::optional<std::size_t> found;  // where it is, in what was found; nothing: it is away
  bool anew = false;                 // it gets a new identity: what lies there counts no more
  std::string away;                  // what lies in the place that stands for it instead
};

struct DevicePlan {
  // To be durable before anything else is written: of this opening, with nobody in it whose content counts no more but
  // as kStruck. `store` and `segment_bytes` are zeros where nothing tells them yet.
  DeviceTable list;
  std::vector<DevicePlace> places;  // in the order of the list, new ones behind it
  struct Note {
    Level level;
    std::string text;
  };
  std::vector<Note> notes;  // for the log, when the opening goes on
};

// `found`: one for each option, at most kDevicesMax. `forget_missing`: members that are not there lose their place.
// On error `why` is one line that says what is wrong and what to do: kInvalid: something there is not this store's, or
// something of this store is not named; kStale: of a newer version; else what could not be read.
Result<DevicePlan> plan_devices(const FoundFile<DeviceTable>& list, std::span<const DeviceFound> found,
                                bool forget_missing, std::string& why);

}  // namespace kvd::store
