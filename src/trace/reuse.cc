#include "trace/reuse.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace kvd::trace {

// A Fenwick tree over the order of uses: a one marks the last use of each block.
class StackDistances {
 public:
  static constexpr std::uint32_t kNever = ~std::uint32_t{0};

  StackDistances(std::size_t uses, std::size_t blocks) : tree_(uses + 1), last_(blocks, kNever) {}

  // Distance of `block`, which is used now; 0 at its first use.
  std::uint32_t use(std::uint32_t block) {
    const std::uint32_t before = last_[block];
    std::uint32_t distance = 0;
    if (before == kNever) {
      ++marked_;
    } else {
      distance = marked_ - sum(before);
      add(before, ~std::uint32_t{0});  // minus one
    }
    last_[block] = now_;
    add(now_++, 1);
    return distance;
  }

 private:
  void add(std::size_t at, std::uint32_t value) {
    for (std::size_t i = at + 1; i < tree_.size(); i += i & (~i + 1)) tree_[i] += value;
  }
  // Marks at uses before `at`.
  [[nodiscard]] std::uint32_t sum(std::size_t at) const {
    std::uint32_t total = 0;
    for (std::size_t i = at; i > 0; i &= i - 1) total += tree_[i];
    return total;
  }

  std::vector<std::uint32_t> tree_;
  std::vector<std::uint32_t> last_;
  std::uint32_t now_ = 0;
  std::uint32_t marked_ = 0;
};

ReuseProfile::ReuseProfile(const Trace& trace)
    : blocks_(trace.block_ids.size()),
      distinct_blocks_(trace.distinct_blocks),
      tokens_within_(trace.distinct_blocks + std::size_t{1}),
      hits_within_(trace.distinct_blocks + std::size_t{1}) {
  KVD_CHECK(trace.block_tokens > 0);
  StackDistances distances(trace.block_ids.size(), trace.distinct_blocks);
  std::vector<double> last_use_s(trace.distinct_blocks);
  for (const Request& request : trace.requests) add_request(trace, request, distances, last_use_s);
  std::vector<std::uint32_t> uses(trace.distinct_blocks);
  for (const std::uint32_t block : trace.block_ids) ++uses[block];
  blocks_used_once_ = static_cast<std::uint64_t>(std::ranges::count(uses, 1U));
  // Nothing lies beyond the longest distance; a replica's share of a trace uses few of all blocks.
  std::size_t longest = hits_within_.size() - 1;
  while (longest > 0 && hits_within_[longest] == 0) --longest;
  hits_within_.resize(longest + 1);
  tokens_within_.resize(longest + 1);
  hits_within_.shrink_to_fit();
  tokens_within_.shrink_to_fit();
  std::partial_sum(tokens_within_.begin(), tokens_within_.end(), tokens_within_.begin());
  std::partial_sum(hits_within_.begin(), hits_within_.end(), hits_within_.begin());
  std::ranges::sort(reuse_times_s_);
}

void ReuseProfile::add_request(const Trace& trace, const Request& request, StackDistances& distances,
                               std::vector<double>& last_use_s) {
  prompt_tokens_ += request.prompt_tokens;
  const auto blocks = trace.blocks_of(request);
  std::uint32_t farthest = 0;  // of the prefix: what the cache must hold for all of it
  bool known = true;
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    const std::uint32_t block = blocks[i];
    const std::uint32_t distance = distances.use(block);
    known = known && distance > 0;
    if (known) {
      farthest = std::max(farthest, distance);
      tokens_within_[farthest] += trace.tokens_of_block(request, i);
      ++hits_within_[farthest];
      reuse_times_s_.push_back(request.arrival_s - last_use_s[block]);
    }
    last_use_s[block] = request.arrival_s;
  }
}

double ReuseProfile::hit_rate(std::uint64_t capacity_blocks) const {
  if (prompt_tokens_ == 0) return 0;
  const auto at = std::min<std::uint64_t>(capacity_blocks, tokens_within_.size() - 1);
  return static_cast<double>(tokens_within_[at]) / static_cast<double>(prompt_tokens_);
}

double ReuseProfile::ideal_hit_rate() const { return hit_rate(tokens_within_.size()); }

double ReuseProfile::ideal_hit_rate_blocks() const {
  return blocks_ == 0 ? 0 : static_cast<double>(hits_within_.back()) / static_cast<double>(blocks_);
}

std::uint64_t ReuseProfile::blocks_for_share(double share) const {
  const double wanted = share * static_cast<double>(tokens_within_.back());
  const auto found =
      std::ranges::find_if(tokens_within_, [&](std::uint64_t n) { return static_cast<double>(n) >= wanted; });
  return static_cast<std::uint64_t>(std::min(found, tokens_within_.end() - 1) - tokens_within_.begin());
}

std::uint64_t ReuseProfile::distance_quantile(double share) const {
  const double wanted = share * static_cast<double>(hits_within_.back());
  const auto found =
      std::ranges::find_if(hits_within_, [&](std::uint64_t n) { return n > 0 && static_cast<double>(n) >= wanted; });
  return found == hits_within_.end() ? 0 : static_cast<std::uint64_t>(found - hits_within_.begin());
}

double ReuseProfile::reuse_time_quantile_s(double share) const {
  if (reuse_times_s_.empty()) return 0;
  const double last = static_cast<double>(reuse_times_s_.size() - 1);
  return reuse_times_s_[static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * last)];
}

}  // namespace kvd::trace
