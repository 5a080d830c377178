// DeviceLog: the parts that write, flush and give up on one device, in the order in which they use each other. Owned by
// the store's flash tier.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "store/change_map.h"
#include "store/evictor.h"
#include "store/flash.h"
#include "store/log_writer.h"
#include "store/scrubber.h"
#include "store/sync_queue.h"
#include "store/use_table.h"

namespace kvd::store {

struct DeviceLog {
  DeviceLog(Flash& flash, FlashDevice& device_in, std::uint64_t scrub_bytes_per_s, bool list_uses)
      : device(device_in),
        syncs(device),
        changes(flash, device, syncs, list_uses),
        evictor(flash, device, syncs, changes),
        writer(flash, device, evictor, syncs),
        scrubber(flash, device, evictor, scrub_bytes_per_s),
        uses(flash, device) {}
  // Takes the memory that giving up and writing need; behind recovery, which gives back its own.
  void reserve() {
    evictor.reserve();
    writer.reserve();
  }

  FlashDevice& device;
  SyncQueue syncs;
  ChangeMap changes;
  Evictor evictor;
  LogWriter writer;
  Scrubber scrubber;
  UseTable uses;
  bool catching_up = false;  // tombstones that waited for the device are written: the demoter's
};

// By device, in the order of Flash::devices.
using DeviceLogs = std::vector<std::unique_ptr<DeviceLog>>;

}  // namespace kvd::store
