#include "store/page_allocator.h"

#include <iterator>

#include "base/check.h"

namespace kvd::store {

PageAllocator::PageAllocator(std::uint32_t pages) : pages_(pages) {
  KVD_CHECK(pages > 0);
  add(0, pages);
}

// Nodes that are given up stay with nodes_.
void PageAllocator::reserve(std::size_t extents) {
  KVD_CHECK(free_pages_ == pages_);
  drop(0, pages_);
  for (std::uint32_t i = 0; i < extents; ++i) {
    by_place_.emplace_hint(by_place_.end(), i, 1);
    by_size_.emplace_hint(by_size_.end(), 1, i);
  }
  by_place_.clear();
  by_size_.clear();
  add(0, pages_);
}

void PageAllocator::add(std::uint32_t first, std::uint32_t pages) {
  by_place_.emplace(first, pages);
  by_size_.emplace(pages, first);
  free_pages_ += pages;
}

void PageAllocator::drop(std::uint32_t first, std::uint32_t pages) {
  by_place_.erase(first);
  by_size_.erase({pages, first});
  free_pages_ -= pages;
}

std::optional<std::uint32_t> PageAllocator::allocate(std::uint32_t pages) {
  KVD_CHECK(pages > 0);
  const auto fit = by_size_.lower_bound({pages, 0});
  if (fit == by_size_.end()) return std::nullopt;
  const auto [length, first] = *fit;
  drop(first, length);
  if (length > pages) add(first + pages, length - pages);
  return first;
}

void PageAllocator::free(std::uint32_t first, std::uint32_t pages) {
  KVD_CHECK(pages > 0 && first < pages_ && pages <= pages_ - first);
  const auto after = by_place_.lower_bound(first);
  if (after != by_place_.end()) KVD_CHECK(after->first >= first + pages);
  std::uint32_t begin = first;
  std::uint32_t length = pages;
  if (after != by_place_.begin()) {
    const auto [before_first, before_pages] = *std::prev(after);
    KVD_CHECK(before_first + before_pages <= first);
    if (before_first + before_pages == first) {
      begin = before_first;
      length += before_pages;
    }
  }
  const bool join_after = after != by_place_.end() && after->first == first + pages;
  const std::uint32_t after_first = join_after ? after->first : 0;
  const std::uint32_t after_pages = join_after ? after->second : 0;
  if (begin != first) drop(begin, first - begin);
  if (join_after) {
    drop(after_first, after_pages);
    length += after_pages;
  }
  add(begin, length);
}

std::uint32_t PageAllocator::largest_free() const noexcept { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

}  // namespace kvd::store
