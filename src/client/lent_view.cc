#include "client/lent_view.h"

#include <functional>

#include "block/checksum.h"

namespace kvd::client {

bool LentView::verify(std::size_t key, std::uint16_t layer) const noexcept {
  const std::byte* const place = place_of(key, layer);
  if (place == nullptr) return false;
  if (slabs_.checksums.empty() || is_copy(place)) return true;
  const std::size_t at = (std::size_t{layer} - slabs_.layer_first) * slabs_.keys + key;
  const Bytes slab(place, slabs_.slab_bytes);
  if (block::slab_checksum(slabs_.seeds[key], layer, slab) == slabs_.checksums[at]) return true;
  report(key);
  return false;
}

// Copies were verified as they were made.
bool LentView::is_copy(const std::byte* place) const noexcept {
  const std::byte* const begin = copies_.get();
  const std::less<const std::byte*> before{};
  return begin != nullptr && !before(place, begin) && before(place, begin + slabs_.places.size() * slabs_.slab_bytes);
}

// A bad image in the depot's pool would else be a miss until it is evicted.
void LentView::report(std::size_t key) const {
  const std::size_t bytes = slabs_.key_bytes.size() / slabs_.keys;
  const auto first = slabs_.key_bytes.begin() + static_cast<std::ptrdiff_t>(key * bytes);
  loans_.front()->desk().report({.ns = slabs_.ns,
                                 .shard = slabs_.shard,
                                 .group = slabs_.group,
                                 .key = std::vector(first, first + static_cast<std::ptrdiff_t>(bytes)),
                                 .native = slabs_.native});
}

}  // namespace kvd::client
