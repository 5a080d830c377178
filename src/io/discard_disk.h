// DiscardDisk: a disk of either engine that takes discards as well, because its block device does.
//
// The kernel discards while the caller waits, so a thread of its own does it, one discard at a time in the order of
// their submission; everything else goes to the engine unchanged. Belongs to the engine's loop. Nothing orders a
// discard with other operations on the same bytes: whoever submits them waits for one before the other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "io/disk.h"
#include "io/fd.h"
#include "io/loop.h"

namespace kvd::io {

inline constexpr std::uint32_t kDiscardsMax = 16;  // waiting or under way; kBusy beyond

// Discards `bytes` from `offset` on: 0 or an errno. Blocks; called on the disk's thread only.
using DiscardCall = std::move_only_function<int(std::uint64_t offset, std::uint64_t bytes)>;

// BLKDISCARD on a block device.
DiscardCall device_discard(UniqueFd fd);

// Takes over `engine`, whose loop `loop` is. kIo when no thread can be had. The disk's end waits for the discard that
// is under way and drops those that wait; their callbacks do not run.
Result<std::unique_ptr<Disk>> make_discard_disk(Loop& loop, std::unique_ptr<Disk> engine, DiscardCall discard);

}  // namespace kvd::io
