// Memory that the system is asked to keep in huge pages, for structures of many small parts that are read at random:
// with ordinary pages nearly every one of their reads misses the processor's table of pages. Large pieces only, as the
// upstream of a monotonic or pool resource. A wish: without huge pages it is memory like any other. One owner, no
// locking.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <stop_token>

namespace kvd {

// An advice of Linux 6.1, MADV_COLLAPSE, that glibc 2.36 does not have.
inline constexpr int kCollapse = 25;

class HugePages final : public std::pmr::memory_resource {
 public:
  static constexpr std::size_t kBytes = 2 << 20;  // of a huge page on x86-64, and on arm64 with pages of 4 KiB

 private:
  // Whole huge pages. Memory that nobody has written costs address space only.
  void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override;
  [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override;
};

// Whether this kernel knows it.
[[nodiscard]] bool can_collapse() noexcept;

// Takes the memory of [at, at + bytes) from the system, in huge pages where they can be had, without changing a byte of
// it: private anonymous memory, which starts and ends on such a boundary and has no huge pages yet (MADV_NOHUGEPAGE).
// On any thread, beside those that use it; where they have touched it before it has plain pages, which are replaced, if
// can_collapse(): who touches it meanwhile waits. What cannot be had comes when it is touched. Returns within a page
// when it is to stop.
void populate_huge(std::byte* at, std::size_t bytes, const std::stop_token& stop) noexcept;

}  // namespace kvd
