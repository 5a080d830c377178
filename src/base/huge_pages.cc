#include "base/huge_pages.h"

#include <sys/mman.h>

#include <new>

namespace kvd {

namespace {
std::size_t whole_pages(std::size_t bytes) {
  return (bytes + HugePages::kBytes - 1) / HugePages::kBytes * HugePages::kBytes;
}
}  // namespace

void* HugePages::do_allocate(std::size_t bytes, std::size_t) {
  const std::size_t size = whole_pages(bytes);
  void* const memory = ::operator new(size, std::align_val_t{kBytes});
  ::madvise(memory, size, MADV_HUGEPAGE);
  return memory;
}

void HugePages::do_deallocate(void* memory, std::size_t, std::size_t) {
  ::operator delete(memory, std::align_val_t{kBytes});
}

bool HugePages::do_is_equal(const std::pmr::memory_resource& other) const noexcept { return this == &other; }

}  // namespace kvd
