// CoarseUsage: how many pages of a tenant lie in segments in which FlashUsage has no share for it, by parts of the log:
// kParts at most, so that giving up the oldest gives up about a part of them, however many segments these are. A plain
// value of fixed size. What has gone with its segment is not known here until dropped_before() says so: it counts for
// longer than it is there, never for shorter.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace kvd::store {

class CoarseUsage {
 public:
  static constexpr std::size_t kParts = 16;

  struct Part {
    std::uint64_t first = 0, last = 0;  // orders (Segment::order) of its oldest and newest segment
    std::uint64_t pages = 0;
  };

  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] const Part* oldest() const noexcept { return empty() ? nullptr : parts_.data(); }

  // Pages more in the segment of this order: recovery finds the newest first.
  void add(std::uint64_t order, std::uint64_t pages) noexcept {
    if (find(order) == count_ && count_ == kParts) merge();
    std::size_t at = find(order);
    if (at == count_) {
      for (at = count_++; at > 0 && parts_[at - 1].first > order; --at) parts_[at] = parts_[at - 1];
      parts_[at] = {.first = order, .last = order, .pages = 0};
    }
    parts_[at].pages += pages;
  }
  // Pages less there; returns how many of them there were.
  std::uint64_t remove(std::uint64_t order, std::uint64_t pages) noexcept {
    const std::size_t at = find(order);
    if (at == count_) return 0;
    const std::uint64_t taken = std::min(pages, parts_[at].pages);
    parts_[at].pages -= taken;
    return taken;
  }
  // Requires that there is one.
  Part take_oldest() noexcept {
    const Part part = parts_[0];
    erase(0);
    return part;
  }
  // Segments of lower orders have nothing any more; returns how many pages that were counted are gone.
  std::uint64_t dropped_before(std::uint64_t order) noexcept {
    std::uint64_t pages = 0;
    while (count_ > 0 && parts_[0].last < order) pages += take_oldest().pages;
    return pages;
  }

 private:
  // The part that the order is in; count_: none.
  [[nodiscard]] std::size_t find(std::uint64_t order) const noexcept {
    std::size_t at = 0;
    while (at < count_ && (order < parts_[at].first || parts_[at].last < order)) ++at;
    return at;
  }
  void erase(std::size_t at) noexcept {
    for (--count_; at < count_; ++at) parts_[at] = parts_[at + 1];
  }
  // The two neighbours with the fewest pages become one, so that parts stay alike.
  void merge() noexcept {
    std::size_t best = 0;
    for (std::size_t at = 1; at + 1 < count_; ++at)
      if (parts_[at].pages + parts_[at + 1].pages < parts_[best].pages + parts_[best + 1].pages) best = at;
    parts_[best + 1].pages += parts_[best].pages;
    parts_[best + 1].first = parts_[best].first;
    erase(best);
  }

  std::array<Part, kParts> parts_{};
  std::size_t count_ = 0;
};

}  // namespace kvd::store
