// Opening the devices of a store of several: looks at the list and at what lies where the options point, plans
// (plan_devices()), and takes what was planned. Up to the first write nothing is changed but that directories are made
// and locked.
//
// The order of writes, each behind a flush (docs/formats/flash-log.md, "List of devices"): the list, in which nobody is
// whose content counts no more; the superblocks of each device; the list again, with all that are here. Stopped
// anywhere the next opening does the rest. A member that is missing stops it before anything is written.
//
// Control path: runs the loop.
#pragma once

#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "io/disk.h"
#include "io/loop.h"
#include "store/device_table.h"
#include "store/directory.h"
#include "store/store.h"
#include "store/volume.h"

namespace kvd::store {

struct OpenedDevices {
  std::vector<StoreDirectory> directories;  // locked; the store's own first
  std::vector<Volume> volumes;
  std::vector<DeviceOptions> wanted;  // of each volume
};

// Whether the store has, or is to have, several devices. Blocks for a look at its directory.
bool has_devices(io::Loop& loop, io::DiskFactory& disks, const StoreOptions& options);

// Opens all. `segments_min`: on each. On error `why` is one line that says what is wrong and what to do: as
// Volume::open() and plan_devices(); kInvalid: a member is missing.
Result<OpenedDevices> open_devices(io::Loop& loop, Log& log, io::DiskFactory& disks, const StoreOptions& options,
                                   std::uint32_t segments_min, std::string& why);

}  // namespace kvd::store
