// Copying slabs and hashing them in one pass over memory: what a get into the caller's own buffer costs, instead of a
// copy and then a second pass for the checksum. Pure, any thread.
//
// Block by block of 4 KiB through a block of the first-level cache, which is what is hashed and what is written to the
// destination: the checksum is that of the bytes that the caller has, whatever happens to the source meanwhile. Large
// ones are written past the caches, so that the destination is not read first only to be written over. The C library's
// memcpy() is not used for cold memory: for pieces of 64 KiB it took twice the time of one of 1 MiB (glibc 2.36 on an
// EPYC with AVX-512, from a depot's memory: 189 us a MiB, 92 us in one piece, 82 us through blocks with the hash).
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "block/checksum.h"

namespace kvd::block {

// What is worth to be written past the caches: half of a second-level cache (1 to 2 MiB). A consumer would not find all
// of it there.
inline constexpr std::size_t kPastCacheBytes = std::size_t{512} << 10;

// Copies `from` to `to` (equally long, not overlapping) and returns the slab's checksum as slab_checksum() gives it.
// `past_cache`: what it belongs to, the get as a whole, has kPastCacheBytes or more.
std::uint64_t copy_and_hash(std::uint64_t record_seed, std::uint32_t layer, Bytes from, MutableBytes to,
                            bool past_cache) noexcept;
// The same of a piece of a slab, whose hash goes on.
void copy_and_hash(SlabHasher& hasher, Bytes from, MutableBytes to, bool past_cache) noexcept;

}  // namespace kvd::block
