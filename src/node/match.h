// Which prefix of a request's blocks can be used, given where each block's records are and each group's hit rule. Pure.
//
// A prefix of p blocks is usable when every group finds what its rule needs for it: `all` every block, `trailing n` the
// last n of the p blocks, `last` only block p - 1. The longest such p counts; p = 0 is always usable.
#pragma once

#include <cstddef>
#include <cstdint>
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

// The search, one lookup after the other, so that its caller may take turns with others.
class PrefixSearch {
 public:
  struct Place {
    std::size_t group = 0;
    std::uint32_t block = 0;
  };
  PrefixSearch(std::vector<MatchGroup> groups, std::uint32_t blocks);

  // Nothing is left to look up.
  [[nodiscard]] bool done() const noexcept { return at_ == order_.size(); }
  // What to look up next. Each place at most once, and none that can't matter. Requires !done().
  [[nodiscard]] Place next() const noexcept { return {order_[at_], block_}; }
  // Where the slowest of its shards is, kNone when one is missing; goes on to the next place.
  void found(Tier tier);
  // Requires done().
  [[nodiscard]] MatchResult result() const;
  // What was found at a place of the prefix that its group needs.
  [[nodiscard]] Tier tier(std::size_t group, std::uint32_t block) const noexcept { return found_[group][block]; }
  [[nodiscard]] const std::vector<MatchGroup>& groups() const noexcept { return groups_; }

 private:
  void skip_ended() noexcept;

  std::vector<MatchGroup> groups_;
  std::vector<std::size_t> order_;  // of groups: those that need every block first, as they bound the prefix
  std::size_t at_ = 0;              // in order_
  std::uint32_t blocks_;
  std::uint32_t longest_;  // what is still possible
  std::uint32_t block_ = 0;
  std::vector<std::vector<Tier>> found_;         // by group
  std::vector<std::vector<std::uint32_t>> run_;  // by group that may have gaps: present blocks in a row up to each
};

// The blocks [first, prefix) that a group with this rule needs for a prefix of `prefix` blocks; returns first.
std::uint32_t first_needed(const MatchGroup& group, std::uint32_t prefix) noexcept;

}  // namespace kvd::node
