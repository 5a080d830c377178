// UringDisk: the io_uring engine of Disk.
//
// Owned like every Disk; see disk.h. It is bound to the thread that runs its loop. When the loop moves to another
// thread (opened and recovered on one, run on another) it makes itself a new ring there and starts unfinished
// operations again, which positional reads and writes allow.
#pragma once

#include <memory>

#include "io/disk.h"
#include "io/disk_file.h"
#include "io/uring.h"

namespace kvd::io {

std::unique_ptr<Disk> make_uring_disk(Loop& loop, DiskFile file, Uring ring, std::uint32_t depth_max);

}  // namespace kvd::io
