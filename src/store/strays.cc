#include "store/strays.h"

#include <algorithm>

namespace kvd::store {

bool Strays::add(std::uint64_t hash, const ReplacedPlace& place) {
  if (places_.size() >= kMax) return false;
  places_.emplace(hash, place);
  return true;
}

std::vector<ReplacedPlace> Strays::take(std::uint64_t hash) {
  std::vector<ReplacedPlace> taken;
  const auto [first, last] = places_.equal_range(hash);
  for (auto at = first; at != last; ++at) taken.push_back(at->second);
  places_.erase(first, last);
  return taken;
}

bool Strays::take(std::uint64_t hash, const ReplacedPlace& place) {
  const auto [first, last] = places_.equal_range(hash);
  const auto at = std::find_if(first, last, [&](const auto& stray) { return stray.second == place; });
  if (at == last) return false;
  places_.erase(at);
  return true;
}

void Strays::forget(std::uint32_t segment) {
  std::erase_if(places_, [segment](const auto& stray) { return stray.second.segment == segment; });
}

}  // namespace kvd::store
