// ThreadDisk: the engine without io_uring: a few threads that preadv, pwritev and fdatasync, and post the results.
//
// Owned like every Disk; see disk.h. Used where io_uring cannot be had, or with DiskOptions::force_threads.
#pragma once

#include <memory>

#include "base/result.h"
#include "io/disk.h"
#include "io/disk_file.h"

namespace kvd::io {

// kIo when no thread can be started.
Result<std::unique_ptr<Disk>> make_thread_disk(Loop& loop, DiskFile file, std::uint32_t depth_max);

}  // namespace kvd::io
