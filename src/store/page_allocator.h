// PageAllocator: which pages of the pool are free. Best fit, lowest address first, neighbours joined at once, so that
// records of a few sizes leave few holes. Knows numbers only, no memory.
//
// One owner, no locking. Bookkeeping is one node in two trees per free extent, at most one more than there are
// allocations; nodes are recycled.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>
#include <optional>
#include <set>
#include <utility>

namespace kvd::store {

class PageAllocator {
 public:
  // Pages 0..pages-1, all free.
  explicit PageAllocator(std::uint32_t pages);
  // Takes the memory for bookkeeping of that many free extents now. Requires that all pages are free.
  void reserve(std::size_t extents);

  // First of `pages` (> 0) contiguous pages; empty when no free extent is long enough.
  std::optional<std::uint32_t> allocate(std::uint32_t pages);
  // Gives back exactly what allocate() gave.
  void free(std::uint32_t first, std::uint32_t pages);

  [[nodiscard]] std::uint32_t pages() const noexcept { return pages_; }
  [[nodiscard]] std::uint32_t free_pages() const noexcept { return free_pages_; }
  [[nodiscard]] std::uint32_t largest_free() const noexcept;
  [[nodiscard]] std::size_t extents() const noexcept { return by_place_.size(); }

 private:
  void add(std::uint32_t first, std::uint32_t pages);
  void drop(std::uint32_t first, std::uint32_t pages);

  std::pmr::unsynchronized_pool_resource nodes_;
  std::pmr::map<std::uint32_t, std::uint32_t> by_place_{&nodes_};            // first -> pages
  std::pmr::set<std::pair<std::uint32_t, std::uint32_t>> by_size_{&nodes_};  // {pages, first}
  std::uint32_t pages_;
  std::uint32_t free_pages_ = 0;
};

}  // namespace kvd::store
