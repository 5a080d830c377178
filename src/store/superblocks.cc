#include "store/superblocks.h"

#include <algorithm>

namespace kvd::store {

SuperblockVerdict judge_superblocks(const SuperblockCopies& copies, bool any_magic, bool zeros) {
  SuperblockVerdict found;
  std::uint32_t newer = 0, valid = 0;
  for (const auto& copy : copies) {
    if (!copy) {
      newer += copy.error().code == Code::kStale ? 1 : 0;
      continue;
    }
    ++valid;
    const auto agree = static_cast<std::uint32_t>(std::ranges::count_if(
        copies, [&](const auto& other) { return other && other->generation == copy->generation; }));
    const bool quorum = agree >= 2;
    const bool have_quorum = found.copies >= 2;
    const bool newest = copy->generation > found.superblock.generation;
    if (found.copies == 0 || (quorum && !have_quorum) || (quorum == have_quorum && newest)) {
      found.superblock = *copy;
      found.copies = agree;
    }
  }
  // One copy that claims to be newer is damage when others are fine; nothing but such copies is a newer store.
  using Kind = SuperblockVerdict::Kind;
  if (newer >= 2 || (newer == 1 && valid == 0)) {
    found.kind = Kind::kNewer;
  } else if (valid > 0) {
    found.kind = Kind::kStore;
  } else {
    found.kind = zeros ? Kind::kEmpty : any_magic ? Kind::kLost : Kind::kForeign;
  }
  return found;
}

}  // namespace kvd::store
