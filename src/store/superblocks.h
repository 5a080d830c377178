// The superblock copies of a flash file: which of the four is in force, and what a file without a valid one is.
#pragma once

#include "store/format.h"
#include "store/quorum.h"

namespace kvd::store {

using SuperblockScan = CopiesScan<Superblock, kMagicSuperblock, parse_superblock>;
using SuperblockVerdict = CopiesVerdict<Superblock>;

inline SuperblockScan scan_superblocks(std::uint64_t bytes,
                                       const std::function<Status(std::uint64_t, MutableBytes)>& read) {
  return scan_copies<SuperblockScan>(bytes, kSuperblockStride, read);
}

}  // namespace kvd::store
