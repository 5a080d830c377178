// Replays of caches: against stack distances, which are another way to the same figures, and by hand.
#include "sim/cache_replay.h"

#include <string>

#include <gtest/gtest.h>

#include "base/random.h"
#include "trace/reuse.h"

namespace kvd::sim {
namespace {

using policy::Eviction;

// Requests of whole blocks of one token each.
trace::Trace trace_of(const std::vector<std::vector<std::uint32_t>>& requests) {
  trace::Trace trace;
  trace.block_tokens = 1;
  for (const std::vector<std::uint32_t>& blocks : requests) {
    trace::Request request;
    request.prompt_tokens = request.blocks = static_cast<std::uint32_t>(blocks.size());
    request.first_block = static_cast<std::uint32_t>(trace.block_ids.size());
    trace.requests.push_back(request);
    for (const std::uint32_t block : blocks) {
      trace.block_ids.push_back(block);
      trace.distinct_blocks = std::max(trace.distinct_blocks, block + 1);
    }
  }
  return trace;
}

// Conversations whose turns repeat what was before and add to it.
trace::Trace conversations(std::uint64_t seed) {
  Random random(seed);
  std::vector<std::vector<std::uint32_t>> talks(40);
  std::vector<std::vector<std::uint32_t>> requests;
  std::uint32_t next = 0;
  for (int i = 0; i < 600; ++i) {
    std::vector<std::uint32_t>& talk = talks[random.below(talks.size())];
    if (random.below(12) == 0) talk.clear();
    for (std::uint64_t n = 1 + random.below(5); n > 0; --n) talk.push_back(next++);
    requests.push_back(talk);
  }
  return trace_of(requests);
}

TEST(CacheReplay, LruOverBlocksIsWhatStackDistancesSay) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const trace::Trace trace = conversations(seed);
    const trace::ReuseProfile profile(trace);
    for (const std::uint64_t capacity : {2U, 10U, 50U, 200U, 600U, 4000U}) {
      EXPECT_DOUBLE_EQ(replay_hit_rate(trace, {.capacity_blocks = capacity}), profile.hit_rate(capacity))
          << "seed " << seed << ", " << capacity << " blocks";
    }
    EXPECT_GT(profile.hit_rate(200), profile.hit_rate(50));  // the capacities make a difference
  }
}

TEST(CacheReplay, AllHaveEverythingWhereThereIsRoom) {
  const trace::Trace trace = conversations(7);
  const double all = trace::ReuseProfile(trace).ideal_hit_rate();
  ASSERT_GT(all, 0.3);
  const std::uint64_t room = std::uint64_t{10} * trace.distinct_blocks;
  for (const Eviction eviction : {Eviction::kLru, Eviction::kFifo}) {
    EXPECT_DOUBLE_EQ(replay_hit_rate(trace, {eviction, room}), all);
    EXPECT_DOUBLE_EQ(replay_hit_rate(trace, {eviction, room, 32, 64}), all);
  }
  EXPECT_DOUBLE_EQ(replay_s3_fifo_hit_rate(trace, room), all);
}

TEST(CacheReplay, GroupsTakeSegmentsApart) {
  // Four segments of two blocks under LRU. Of each prompt only the first block comes again.
  const trace::Trace trace = trace_of({{0, 1}, {2, 3}, {4, 5}, {0}, {2}, {4}, {6, 7}, {8, 9}, {0}, {2}, {4}});
  const auto hits = [&](Grouping grouping) {
    return replay_hit_rate(trace, {Eviction::kLru, 8, 2, 1, grouping, 1}) * 16;
  };
  EXPECT_DOUBLE_EQ(hits(Grouping::kNone), 4);   // {0 1} and {2 3} go for {8 9} and for 0
  EXPECT_DOUBLE_EQ(hits(Grouping::kKnown), 6);  // {0 2} {1 3} {4 .}: what is used stays
  EXPECT_DOUBLE_EQ(hits(Grouping::kDepth), 6);  // the same blocks, but {4 6}
}

TEST(CacheReplay, WhatWasGivenUpOnceIsApart) {
  // Three segments of two blocks under FIFO: 0 is stored again behind {4 5}, apart, and outlives two more.
  const std::vector<std::vector<std::uint32_t>> requests = {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {0}, {8, 9}, {0}};
  const trace::Trace trace = trace_of(requests);
  EXPECT_DOUBLE_EQ(replay_hit_rate(trace, {Eviction::kFifo, 6, 2, 1, Grouping::kAgain}) * 12, 1);
}

TEST(CacheReplay, OfOneGroupTwoOpenSegmentsAreOne) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const trace::Trace trace = conversations(seed);
    for (const std::uint32_t interleaved : {1U, 8U}) {
      const ReplayCache one{Eviction::kLru, 200, 8, interleaved};
      const ReplayCache all_heads{Eviction::kLru, 200, 8, interleaved, Grouping::kDepth, 1'000'000};
      const ReplayCache no_heads{Eviction::kLru, 200, 8, interleaved, Grouping::kDepth, 0};
      EXPECT_DOUBLE_EQ(replay_hit_rate(trace, one), replay_hit_rate(trace, all_heads));
      EXPECT_DOUBLE_EQ(replay_hit_rate(trace, one), replay_hit_rate(trace, no_heads));
      const ReplayCache some{Eviction::kLru, 200, 8, interleaved, Grouping::kDepth, 2};
      EXPECT_NE(replay_hit_rate(trace, one), replay_hit_rate(trace, some));
    }
  }
}

TEST(CacheReplay, AUseSavesTheWholeSegmentUnderLruAndNotUnderFifo) {
  // Two segments of two blocks: {0 1} {2 3}; 0 is used, then 4 needs room.
  const trace::Trace trace = trace_of({{0, 1}, {2, 3}, {0}, {4}, {1}, {2}});
  EXPECT_DOUBLE_EQ(replay_hit_rate(trace, {Eviction::kLru, 4, 2}), 2.0 / 8);   // 0, and 1 beside it
  EXPECT_DOUBLE_EQ(replay_hit_rate(trace, {Eviction::kFifo, 4, 2}), 2.0 / 8);  // 0, and 2
  const trace::Trace other = trace_of({{0, 1}, {2, 3}, {0}, {4}, {1}});
  EXPECT_DOUBLE_EQ(replay_hit_rate(other, {Eviction::kLru, 4, 2}), 2.0 / 7);
  EXPECT_DOUBLE_EQ(replay_hit_rate(other, {Eviction::kFifo, 4, 2}), 1.0 / 7);
}

TEST(CacheReplay, WithoutAllBlocksBeforeItABlockIsNoHit) {
  // Two blocks of room, by recency: 2 is there when the second request comes, 0 and 1 are not.
  const trace::Trace trace = trace_of({{0, 1, 2}, {0, 1, 2}});
  EXPECT_DOUBLE_EQ(replay_hit_rate(trace, {.capacity_blocks = 2}), 0);
  EXPECT_DOUBLE_EQ(replay_hit_rate(trace, {.capacity_blocks = 3}), 0.5);
}

TEST(CacheReplay, InterleavedRequestsShareSegments) {
  // Written in turn, {0 2} {1 3}: 5 comes into the place of a segment with a block of both. 0 is found, 1 is not.
  const trace::Trace trace = trace_of({{0, 1}, {2, 3}, {0}, {4}, {5}, {0, 1}});
  EXPECT_DOUBLE_EQ(replay_hit_rate(trace, {Eviction::kLru, 4, 2, 2}), 2.0 / 9);
  EXPECT_DOUBLE_EQ(replay_hit_rate(trace, {Eviction::kLru, 4, 2, 1}), 3.0 / 9);
}

TEST(CacheReplay, WhatWaitsToBeWrittenIsThereAndTakesRoom) {
  // Nothing is written before the third request. The first segment is open and kept.
  const trace::Trace trace = trace_of({{0}, {0}, {1}, {0, 1}});
  EXPECT_DOUBLE_EQ(replay_hit_rate(trace, {Eviction::kLru, 4, 2, 3}), 3.0 / 5);
}

TEST(CacheReplay, S3FifoKeepsWhatIsUsedTwiceThroughAScan) {
  // 0 is used twice behind its first use, then 30 others come once.
  std::vector<std::vector<std::uint32_t>> requests = {{0}, {0}, {0}};
  for (std::uint32_t i = 1; i <= 30; ++i) requests.push_back({i});
  requests.push_back({0});
  const trace::Trace trace = trace_of(requests);
  EXPECT_DOUBLE_EQ(replay_s3_fifo_hit_rate(trace, 20), 3.0 / 34);
  EXPECT_DOUBLE_EQ(replay_hit_rate(trace, {Eviction::kLru, 20}), 2.0 / 34);
}

TEST(CacheReplay, S3FifoRemembersTheNamesOfWhatItLostSoon) {
  // 20 places, 2 of them for new blocks, which the others pass through. 0 leaves unused, comes back into the main
  // part, and outlives what is new.
  std::vector<std::vector<std::uint32_t>> requests;
  for (std::uint32_t i = 0; i <= 20; ++i) requests.push_back({i});
  requests.push_back({0});
  for (std::uint32_t i = 21; i <= 38; ++i) requests.push_back({i});
  requests.push_back({0});
  EXPECT_DOUBLE_EQ(replay_s3_fifo_hit_rate(trace_of(requests), 20), 1.0 / 41);
}

}  // namespace
}  // namespace kvd::sim
