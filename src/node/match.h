// Which prefix of a request's blocks can be used, given where each block's records are and each group's hit rule. Pure.
//
// A prefix of p blocks is usable when every group finds what its rule needs for it: `all` every block, `trailing n` the
// last n of the p blocks, `last` only block p - 1. The longest such p counts; p = 0 is always usable.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kvdepot/types.h"

namespace kvd::node {

struct MatchGroup {
  HitRule rule = HitRule::kAll;
  std::uint32_t hit_blocks = 0;  // of kTrailing
};

struct MatchResult {
  std::uint32_t prefix_blocks = 0;
  std::vector<Tier> tiers;  // one per block of the request: the slowest tier that serves it; kNone beyond the prefix
};

// `lookup(group, block)`: where the slowest of the block's shards is, kNone when one is missing. Asked at most once for
// each pair, and not for blocks that can't matter.
MatchResult match_prefix(std::span<const MatchGroup> groups, std::uint32_t blocks,
                         const std::function<Tier(std::size_t group, std::uint32_t block)>& lookup);

// The blocks [first, prefix) that a group with this rule needs for a prefix of `prefix` blocks; returns first.
std::uint32_t first_needed(const MatchGroup& group, std::uint32_t prefix) noexcept;

}  // namespace kvd::node
