// Tests of stack distances: by hand, and against a cache that is simulated block by block.
#include "trace/reuse.h"

#include <algorithm>
#include <deque>

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvd::trace {
namespace {

Trace trace_of(const std::vector<std::vector<std::uint32_t>>& requests, std::uint32_t last_tokens = 4) {
  Trace trace;
  trace.block_tokens = 4;
  trace.timed = true;
  for (const auto& blocks : requests) {
    const auto count = static_cast<std::uint32_t>(blocks.size());
    trace.requests.push_back({static_cast<double>(trace.requests.size()), (count - 1) * 4 + last_tokens, 1,
                              static_cast<std::uint32_t>(trace.block_ids.size()), count});
    for (const std::uint32_t block : blocks) {
      trace.block_ids.push_back(block);
      trace.distinct_blocks = std::max(trace.distinct_blocks, block + 1);
    }
  }
  return trace;
}

// Share of prompt tokens found in an LRU list of `capacity` blocks, prefixes only. Blocks of a request that are used
// while it is read don't push out each other's turn: each is looked up, then becomes the newest.
double hit_rate_by_hand(const Trace& trace, std::size_t capacity) {
  std::deque<std::uint32_t> cache;
  double hit = 0;
  double all = 0;
  for (const Request& request : trace.requests) {
    bool prefix = true;
    for (std::uint32_t i = 0; i < request.blocks; ++i) {
      const std::uint32_t block = trace.blocks_of(request)[i];
      const auto found = std::ranges::find(cache, block);
      prefix = prefix && found != cache.end();
      if (prefix) hit += trace.tokens_of_block(request, i);
      if (found != cache.end()) cache.erase(found);
      cache.push_front(block);
      if (cache.size() > capacity) cache.pop_back();
    }
    all += request.prompt_tokens;
  }
  return hit / all;
}

TEST(ReuseProfile, CountsDistinctBlocksSinceTheLastUse) {
  const ReuseProfile profile(trace_of({{0, 1}, {0, 2}, {0, 1}}));  // distances: -, -, 2, -, 2, 3
  EXPECT_DOUBLE_EQ(profile.hit_rate(0), 0);
  EXPECT_DOUBLE_EQ(profile.hit_rate(1), 0);
  EXPECT_DOUBLE_EQ(profile.hit_rate(2), 2.0 / 6);
  EXPECT_DOUBLE_EQ(profile.hit_rate(3), 3.0 / 6);
  EXPECT_DOUBLE_EQ(profile.hit_rate(1'000'000), 3.0 / 6);
  EXPECT_EQ(profile.distinct_blocks(), 3U);
  EXPECT_EQ(profile.blocks_used_once(), 1U);
  EXPECT_EQ(profile.blocks_for_share(1), 3U);
  EXPECT_EQ(profile.blocks_for_share(0.6), 2U);
  EXPECT_EQ(profile.distance_quantile(0.5), 2U);
  EXPECT_DOUBLE_EQ(profile.reuse_time_quantile_s(1), 2);
}

TEST(ReuseProfile, APartialBlockCountsItsTokens) {
  const ReuseProfile profile(trace_of({{0, 1}, {0, 1}}, 1));  // 5 tokens each
  EXPECT_DOUBLE_EQ(profile.ideal_hit_rate(), 0.5);
  EXPECT_DOUBLE_EQ(profile.ideal_hit_rate_blocks(), 0.5);
  EXPECT_DOUBLE_EQ(ReuseProfile(trace_of({{0, 1}, {0, 2}}, 1)).ideal_hit_rate(), 4.0 / 10);
}

TEST(ReuseProfile, ABlockBehindAMissIsNoHit) {
  const ReuseProfile profile(trace_of({{0, 1}, {2, 1}}));  // 1 behind another prefix would be another block
  EXPECT_DOUBLE_EQ(profile.ideal_hit_rate(), 0);
  EXPECT_EQ(profile.distance_quantile(0.5), 0U);
  EXPECT_DOUBLE_EQ(profile.reuse_time_quantile_s(0.5), 0);
}

TEST(EveryNth, DealsRequestsInTurn) {
  const Trace trace = trace_of({{0, 1}, {0, 2}, {0, 1}, {3}});
  const Trace odd = every_nth(trace, 2, 1);
  ASSERT_EQ(odd.requests.size(), 2U);
  EXPECT_EQ(odd.block_ids, (std::vector<std::uint32_t>{0, 2, 3}));
  EXPECT_EQ(odd.blocks_of(odd.requests[1])[0], 3U);
  EXPECT_DOUBLE_EQ(odd.requests[1].arrival_s, 3);
  EXPECT_DOUBLE_EQ(ReuseProfile(every_nth(trace, 2, 0)).ideal_hit_rate(), 0.5);
  EXPECT_DOUBLE_EQ(ReuseProfile(odd).ideal_hit_rate(), 0);
}

TEST(ReuseProfile, AgreesWithASimulatedCacheAtEveryCapacity) {
  Random random(7);
  std::vector<std::vector<std::uint32_t>> requests;
  std::uint32_t next = 40;
  for (int i = 0; i < 200; ++i) {
    std::vector<std::uint32_t> blocks;
    if (!requests.empty() && random.below(3) > 0) {  // continues or repeats an earlier one
      blocks = requests[random.below(requests.size())];
      blocks.resize(1 + random.below(blocks.size()));
    }
    for (std::uint64_t more = random.below(4) + (blocks.empty() ? 1 : 0); more > 0; --more) blocks.push_back(next++);
    requests.push_back(std::move(blocks));
  }
  const Trace trace = trace_of(requests, 3);
  const ReuseProfile profile(trace);
  for (std::size_t capacity = 0; capacity < 200; capacity += 7) {
    EXPECT_NEAR(profile.hit_rate(capacity), hit_rate_by_hand(trace, capacity), 1e-12) << capacity;
  }
}

}  // namespace
}  // namespace kvd::trace
