// Typed ids: an integer that cannot be mistaken for another. `using SegmentId = Id<struct SegmentTag, uint32_t>;`
#pragma once

#include <compare>
#include <cstddef>
#include <functional>

namespace kvd {

// An id of kind `Tag`, stored as `Rep`. Ids of different kinds do not compare, convert or mix; equal kinds order by
// value. Trivially copyable, so ids may cross threads and lie in formats.
template <class Tag, class Rep>
struct Id {
  Rep value{};
  friend auto operator<=>(const Id&, const Id&) = default;
};

}  // namespace kvd

// So that ids can be keys of unordered containers; as good as the hash of the integer beneath.
template <class Tag, class Rep>
struct std::hash<kvd::Id<Tag, Rep>> {
  std::size_t operator()(const kvd::Id<Tag, Rep>& id) const noexcept { return std::hash<Rep>{}(id.value); }
};
