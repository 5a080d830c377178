#include "io/aligned_map.h"

#include <sys/mman.h>

#include <cerrno>

#include "base/bytes.h"

namespace kvd::io {

void* map_aligned(int fd, std::uint64_t bytes, int protection, Mapping mapping) {
  const std::uint64_t area_bytes = bytes + kHugePageBytes;
  void* const area = ::mmap(nullptr, area_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) return area;
  const auto begin = reinterpret_cast<std::uintptr_t>(area);
  const std::uint64_t at = align_up(begin, kHugePageBytes);
  const int flags = (mapping == Mapping::kShared ? MAP_SHARED : MAP_PRIVATE) | MAP_FIXED | MAP_NORESERVE;
  void* const base = ::mmap(reinterpret_cast<void*>(at), bytes, protection, flags, fd, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    ::munmap(area, area_bytes);
    errno = error;
    return base;
  }
  // What the file does not take goes back.
  const std::uint64_t end = at + align_up(bytes, kPageBytes);
  if (at > begin) ::munmap(area, at - begin);
  if (begin + area_bytes > end) ::munmap(reinterpret_cast<void*>(end), begin + area_bytes - end);
  return base;
}

}  // namespace kvd::io
