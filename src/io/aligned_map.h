// Mapping a file on a boundary of huge pages, so that its memory can be mapped in huge pages where it consists of them.
// Plain function, any thread.
#pragma once

#include <cstdint>

namespace kvd::io {

inline constexpr std::uint64_t kHugePageBytes = std::uint64_t{2} << 20;  // x86-64 and ARM64 with 4 KiB pages

// kShared: what is written there is written to the file. kPrivate: it shows the file, but where this process has
// written it has pages of its own instead.
enum class Mapping : bool { kShared, kPrivate };

// Maps the first `bytes` of `fd` at a multiple of kHugePageBytes; `protection` as mmap() takes it. MAP_FAILED with
// errno when it cannot be had; ends with munmap().
void* map_aligned(int fd, std::uint64_t bytes, int protection, Mapping mapping);

}  // namespace kvd::io
