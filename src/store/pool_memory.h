// The pool's mapping: on a boundary of huge pages, sealed, and how its memory is made real, in huge pages where they
// can be had.
//
// Direct I/O and copies cost less on huge pages: a slab is then one piece of physical memory to a device, not one per
// 4 KiB. Plain functions; populate_pool() may run on any thread beside puts, gets and transfers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvd::store {

// Maps `bytes` of `fd` for reading and writing, shared. MAP_FAILED with errno when it cannot be had; ends with
// munmap().
void* map_pool(int fd, std::uint64_t bytes);

// Seals the pool's file, which is mapped already: its size stays. With `shared` nobody can write to it any more but
// through mappings that exist, so it can be handed to readers; false when this kernel cannot seal it so (before 5.1).
bool seal_pool(int fd, bool shared);

// Takes the memory of [at, at + bytes) from the system, without changing a byte of it. False with errno when there is
// not that much, or the kernel cannot do it ahead of use (EINVAL, before 5.14).
bool populate_pool(std::byte* at, std::uint64_t bytes);

}  // namespace kvd::store
