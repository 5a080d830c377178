#include "sim/event_heap.h"

#include <algorithm>

#include "base/check.h"

namespace kvd::sim {

EventHeap::EventHeap(std::uint32_t count) : where_(count) {
  KVD_CHECK(count > 0);
  for (std::uint32_t i = 0; i < count; ++i) {
    heap_.push_back({kNever, i});
    where_[i] = i;
  }
}

void EventHeap::set(std::uint32_t instance, Picoseconds time) noexcept {
  const Entry entry{time, instance};
  auto at = where_[instance];
  const auto size = static_cast<std::uint32_t>(heap_.size());
  while (at > 0) {
    const std::uint32_t parent = (at - 1) / 4;
    if (!entry.before(heap_[parent])) break;
    place(at, heap_[parent]);
    at = parent;
  }
  for (std::uint32_t child = at * 4 + 1; child < size; child = at * 4 + 1) {
    const std::uint32_t end = std::min(child + 4, size);
    std::uint32_t least = child;
    for (std::uint32_t c = child + 1; c < end; ++c) {
      if (heap_[c].before(heap_[least])) least = c;
    }
    if (!heap_[least].before(entry)) break;
    place(at, heap_[least]);
    at = least;
  }
  place(at, entry);
}

}  // namespace kvd::sim
