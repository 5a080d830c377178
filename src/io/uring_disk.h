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

// Of use_memory() so much is registered in one turn of the loop, as a buffer of its own: some milliseconds. The kernel
// takes 16,384 buffers of at most 1 GiB.
inline constexpr std::uint64_t kRegisteredBytes = std::uint64_t{256} << 20;
inline constexpr std::uint64_t kRegisteredMax = 16'384;

std::unique_ptr<Disk> make_uring_disk(Loop& loop, Log& log, DiskFile file, Uring ring, std::uint32_t depth_max,
                                      std::uint64_t registered_bytes = kRegisteredBytes);

}  // namespace kvd::io
