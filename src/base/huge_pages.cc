#include "base/huge_pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <new>
#include <thread>

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

bool can_collapse() noexcept { return ::madvise(nullptr, 0, kCollapse) == 0; }

// A range with a plain page is collapsed; one without any has nothing to collapse and gets a huge page when it is
// touched, as has one that was only read. To clear one takes 0.3 ms, and 5 where the host of a virtual machine has to
// find the memory first. Collapsing keeps all page faults of the process waiting meanwhile, and touching keeps all that
// maps memory: so it goes by single pages, with a pause behind each.
void populate_huge(std::byte* at, std::size_t bytes, const std::stop_token& stop) noexcept {
  for (std::size_t page = 0; page < bytes && !stop.stop_requested(); page += HugePages::kBytes) {
    const auto begun = std::chrono::steady_clock::now();
    ::madvise(at + page, HugePages::kBytes, MADV_HUGEPAGE);
    if (::madvise(at + page, HugePages::kBytes, kCollapse) != 0 && errno == EAGAIN)  // pages were in use
      ::madvise(at + page, HugePages::kBytes, kCollapse);
    ::madvise(at + page, HugePages::kBytes, MADV_POPULATE_WRITE);
    std::this_thread::sleep_for((std::chrono::steady_clock::now() - begun) / 8);
  }
}

}  // namespace kvd
