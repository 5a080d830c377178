// Copying a slab and hashing it in one pass over memory: what a get into the caller's own buffer costs, instead of a
// copy and then a second pass for the checksum. Pure, any thread.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace kvd::block {

// Copies `from` to `to` (equally long, not overlapping) and returns the slab's checksum as slab_checksum() gives it,
// taken from the copy: what is right is what the caller has. Works in blocks that stay in the second-level cache
// between the two steps.
std::uint64_t copy_and_hash(std::uint64_t record_seed, std::uint32_t layer, Bytes from, MutableBytes to) noexcept;

}  // namespace kvd::block
