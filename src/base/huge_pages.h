// Memory that the system is asked to keep in huge pages, for structures of many small parts that are read at random:
// with ordinary pages nearly every one of their reads misses the processor's table of pages. Large pieces only, as the
// upstream of a monotonic or pool resource. A wish: without huge pages it is memory like any other. One owner, no
// locking.
#pragma once

#include <cstddef>
#include <memory_resource>

namespace kvd {

class HugePages final : public std::pmr::memory_resource {
 public:
  static constexpr std::size_t kBytes = 2 << 20;  // of a huge page on x86-64, and on arm64 with pages of 4 KiB

 private:
  // Whole huge pages. Memory that nobody has written costs address space only.
  void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override;
  [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override;
};

}  // namespace kvd
