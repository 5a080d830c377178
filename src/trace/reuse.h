// How much of a trace's prompts a cache of a given size would hold: LRU stack distances (Mattson et al., 1970), all
// capacities from one pass in O(n log n). Pure; an object is built once and then read by any thread.
//
// A block's stack distance is the number of distinct blocks used since its last use, itself included: an LRU cache of
// at least that many blocks has it. Only prefixes count: a block is a hit when it and all blocks before it are in the
// cache. Each request uses its blocks in order, at its arrival; blocks made by decoding are not in a trace.
#pragma once

#include <cstdint>
#include <vector>

#include "trace/trace.h"

namespace kvd::trace {

class ReuseProfile {
 public:
  // `trace` has block ids (block_tokens > 0); it is not kept. 288,500 ids take about 30 ms.
  explicit ReuseProfile(const Trace& trace);

  // Share of all prompt tokens that an LRU cache of so many blocks, shared by all requests, holds.
  [[nodiscard]] double hit_rate(std::uint64_t capacity_blocks) const;
  // The same without a limit, in tokens and in blocks.
  [[nodiscard]] double ideal_hit_rate() const;
  [[nodiscard]] double ideal_hit_rate_blocks() const;
  // Fewest blocks whose hit rate is at least `share` (0 to 1) of the ideal one.
  [[nodiscard]] std::uint64_t blocks_for_share(double share) const;
  // Stack distance in blocks below which a share of the hits lies; 0 where there are none.
  [[nodiscard]] std::uint64_t distance_quantile(double share) const;
  // Seconds between two uses of a block, below which a share of the hits lies; 0 where there are none.
  [[nodiscard]] double reuse_time_quantile_s(double share) const;

  [[nodiscard]] std::uint64_t prompt_tokens() const { return prompt_tokens_; }
  [[nodiscard]] std::uint64_t distinct_blocks() const { return distinct_blocks_; }
  [[nodiscard]] std::uint64_t blocks_used_once() const { return blocks_used_once_; }

 private:
  void add_request(const Trace& trace, const Request& request, class StackDistances& distances,
                   std::vector<double>& last_use_s);

  std::uint64_t prompt_tokens_ = 0;
  std::uint64_t blocks_ = 0;
  std::uint64_t distinct_blocks_ = 0;
  std::uint64_t blocks_used_once_ = 0;
  std::vector<std::uint64_t> tokens_within_;  // [d]: tokens that a cache of d blocks has, cumulative
  std::vector<std::uint64_t> hits_within_;    // [d]: blocks, cumulative
  std::vector<double> reuse_times_s_;         // of every hit, ascending
};

}  // namespace kvd::trace
