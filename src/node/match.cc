#include "node/match.h"

#include <algorithm>
#include <utility>

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

PrefixSearch::PrefixSearch(std::vector<MatchGroup> groups, std::uint32_t blocks)
    : groups_(std::move(groups)), blocks_(blocks), longest_(blocks), found_(groups_.size()), run_(groups_.size()) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].rule == HitRule::kAll) order_.push_back(g);
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].rule != HitRule::kAll) order_.push_back(g);
  }
  skip_ended();
}

void PrefixSearch::skip_ended() noexcept {
  while (at_ < order_.size() && block_ >= longest_) {
    ++at_;
    block_ = 0;
  }
}

void PrefixSearch::found(Tier tier) {
  const std::size_t g = order_[at_];
  if (groups_[g].rule == HitRule::kAll && tier == Tier::kNone) {
    longest_ = block_;  // such a group ends at its first missing block
  } else {
    found_[g].push_back(tier);
    if (groups_[g].rule != HitRule::kAll) {  // the others may have gaps
      const std::uint32_t before = block_ == 0 ? 0 : run_[g].back();
      run_[g].push_back(tier == Tier::kNone ? 0 : before + 1);
    }
    ++block_;
  }
  skip_ended();
}

MatchResult PrefixSearch::result() const {
  MatchResult result{.prefix_blocks = 0, .tiers = std::vector<Tier>(blocks_, Tier::kNone)};
  const auto usable = [&](std::uint32_t prefix) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].rule == HitRule::kAll) continue;
      if (run_[g][prefix - 1] < prefix - first_needed(groups_[g], prefix)) return false;
    }
    return true;
  };
  std::uint32_t prefix = longest_;
  while (prefix > 0 && !usable(prefix)) --prefix;
  result.prefix_blocks = prefix;
  std::fill_n(result.tiers.begin(), prefix, Tier::kPool);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (std::uint32_t b = first_needed(groups_[g], prefix); b < prefix; ++b) {
      result.tiers[b] = slower(result.tiers[b], found_[g][b]);
    }
  }
  return result;
}

}  // namespace kvd::node
