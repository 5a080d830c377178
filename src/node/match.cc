#include "node/match.h"

#include <algorithm>

namespace kvd::node {
namespace {

// The slower of two tiers; kNone is the slowest.
Tier slower(Tier a, Tier b) noexcept {
  if (a == Tier::kNone || b == Tier::kNone) return Tier::kNone;
  return std::max(a, b);
}

}  // namespace

std::uint32_t first_needed(const MatchGroup& group, std::uint32_t prefix) noexcept {
  switch (group.rule) {
    case HitRule::kAll: return 0;
    case HitRule::kTrailing: return prefix - std::min(prefix, group.hit_blocks);
    case HitRule::kLast: return prefix - std::min(prefix, 1U);
  }
  return 0;
}

MatchResult match_prefix(std::span<const MatchGroup> groups, std::uint32_t blocks,
                         const std::function<Tier(std::size_t, std::uint32_t)>& lookup) {
  MatchResult result{.prefix_blocks = 0, .tiers = std::vector<Tier>(blocks, Tier::kNone)};
  std::vector<std::vector<Tier>> found(groups.size());
  std::uint32_t longest = blocks;
  // Groups that need every block bound the prefix; each ends at its first missing block.
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].rule != HitRule::kAll) continue;
    for (std::uint32_t b = 0; b < longest; ++b) {
      const Tier tier = lookup(g, b);
      if (tier == Tier::kNone)
        longest = b;
      else
        found[g].push_back(tier);
    }
  }
  // The others may have gaps: how many blocks in a row are present up to each block.
  std::vector<std::vector<std::uint32_t>> run(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].rule == HitRule::kAll) continue;
    std::uint32_t length = 0;
    for (std::uint32_t b = 0; b < longest; ++b) {
      const Tier tier = lookup(g, b);
      found[g].push_back(tier);
      length = tier == Tier::kNone ? 0 : length + 1;
      run[g].push_back(length);
    }
  }
  const auto usable = [&](std::uint32_t prefix) {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].rule == HitRule::kAll) continue;
      if (run[g][prefix - 1] < prefix - first_needed(groups[g], prefix)) return false;
    }
    return true;
  };
  std::uint32_t prefix = longest;
  while (prefix > 0 && !usable(prefix)) --prefix;
  result.prefix_blocks = prefix;
  std::fill_n(result.tiers.begin(), prefix, Tier::kPool);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::uint32_t b = first_needed(groups[g], prefix); b < prefix; ++b) {
      result.tiers[b] = slower(result.tiers[b], found[g][b]);
    }
  }
  return result;
}

}  // namespace kvd::node
