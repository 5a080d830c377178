// How much of a trace's prompts a cache that gives up whole segments has, with the store's own eviction policies, and
// what LRU, FIFO and S3-FIFO over single blocks have. Pure and deterministic; any thread.
//
// A block is a hit when it and all blocks before it are there. The cache is filled with what was no hit, and a use of
// any block of a request that is there counts as a use of its segment, as in the store. There is one tier: what a pool
// of DRAM before it would hold is not looked at.
#pragma once

#include <cstdint>

#include "policy/eviction.h"
#include "trace/trace.h"

namespace kvd::sim {

// Which of a request's blocks share an open segment. A store that keeps several open could part what stays from what
// goes, if it knew; kKnown says what that would bring at most.
enum class Grouping : std::uint8_t {
  kNone,   // one segment is open
  kDepth,  // the first blocks of a prompt, which others may share, in one, the rest in another
  kAgain,  // what was stored before and given up in one, the rest in another
  kKnown,  // what a later request of the trace uses in one, the rest in another: nobody knows that beforehand
};

struct ReplayCache {
  policy::Eviction eviction = policy::Eviction::kLru;
  std::uint64_t capacity_blocks = 0;
  std::uint32_t segment_blocks = 1;  // 1: every block by itself
  // So many requests are written at once, a block of each in turn. Blocks that wait for it are there and count.
  std::uint32_t interleaved_requests = 1;
  Grouping grouping = Grouping::kNone;
  std::uint32_t head_blocks = 0;  // kDepth: of a prompt
};

// Segments of a cache, and how many replay_hit_rate() requires: one more than are open.
[[nodiscard]] std::uint64_t replay_segments(const ReplayCache& cache) noexcept;
[[nodiscard]] std::uint64_t replay_segments_min(const ReplayCache& cache) noexcept;

// Share of all prompt tokens that are hits. Requires a trace with block ids.
[[nodiscard]] double replay_hit_rate(const trace::Trace& trace, const ReplayCache& cache);
// The same under S3-FIFO (Yang et al., SOSP '23) over at least two single blocks.
[[nodiscard]] double replay_s3_fifo_hit_rate(const trace::Trace& trace, std::uint64_t capacity_blocks);

}  // namespace kvd::sim
