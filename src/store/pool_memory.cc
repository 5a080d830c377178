#include "store/pool_memory.h"

#include <sys/mman.h>

#include "base/bytes.h"

namespace kvd::store {
namespace {

constexpr std::uint64_t kHugePageBytes = std::uint64_t{2} << 20;

// Linux 6.1; glibc 2.36 does not have it.
#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;
#endif

}  // namespace

void* map_pool(int fd, std::uint64_t bytes) {
  const std::uint64_t area_bytes = bytes + kHugePageBytes;
  void* const area = ::mmap(nullptr, area_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) return area;
  const auto begin = reinterpret_cast<std::uintptr_t>(area);
  const std::uint64_t at = align_up(begin, kHugePageBytes);
  void* const base =
      ::mmap(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED) {
    ::munmap(area, area_bytes);
    return base;
  }
  // What the pool does not take goes back.
  const std::uint64_t end = at + align_up(bytes, kPageBytes);
  if (at > begin) ::munmap(area, at - begin);
  if (begin + area_bytes > end) ::munmap(reinterpret_cast<void*>(end), begin + area_bytes - end);
  return base;
}

// Collapsing gives huge pages also where the system grants shared memory none by itself (shmem_enabled, which is
// `never` unless somebody sets it). A page of each range is touched first, as a range without any is refused; that
// takes half the time of touching all of them (kernel 6.18: 1.8 against 3.6 ms for 2 MiB). Where it fails (no free huge
// page, pages in use by the device, an older kernel) the last step populates plain pages.
bool populate_pool(std::byte* at, std::uint64_t bytes) {
  const std::uint64_t whole = bytes / kHugePageBytes * kHugePageBytes;
  for (std::uint64_t page = 0; page < whole; page += kHugePageBytes)
    if (::madvise(at + page, kPageBytes, MADV_POPULATE_WRITE) != 0) return false;
  if (whole > 0) ::madvise(at, whole, MADV_COLLAPSE);
  return ::madvise(at, bytes, MADV_POPULATE_WRITE) == 0;
}

}  // namespace kvd::store
