// Tests of the fleet's engine and its prefix cache: decisions that can be followed by hand, the cache against a simple
// list, and runs taken at once against single passes.
#include "sched/v1_engine.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvd::sched {
namespace {

constexpr UnitId kIds[] = {0, 1, 2, 3, 4, 5, 6, 7};

Units prompt_of(std::uint32_t units, std::uint32_t first = 0) { return {kIds + first, units, 0}; }

TEST(PrefixCache, FindsWhatWasReleasedAndEvictsTailsFirst) {
  PrefixCache cache(8, 4);
  PrefixCache::Held held;
  ASSERT_TRUE(cache.hold(prompt_of(2), 8, held, 0));
  EXPECT_EQ(cache.available(), 0U);
  EXPECT_FALSE(cache.take(1));
  cache.release(held, 0);
  EXPECT_EQ(cache.match(prompt_of(2), 8), 8U);
  ASSERT_TRUE(cache.take(1));
  EXPECT_EQ(cache.match(prompt_of(2), 8), 7U);  // the last block of the last unit went
  ASSERT_TRUE(cache.take(4));
  EXPECT_EQ(cache.match(prompt_of(2), 8), 3U);
  EXPECT_TRUE(cache.consistent());
}

// Takes minutes where all these have one place in the table.
TEST(PrefixCache, FindsAUnitBehindVeryManyOthers) {
  constexpr std::uint32_t kRuns = 400'000;
  PrefixCache cache(4 * kRuns, 1);
  std::vector<UnitId> ids;
  for (UnitId i = 0; i < kRuns; ++i) ids.insert(ids.end(), {10 + i, 1, 10 + i, 2});
  for (std::uint32_t i = 0; i < 2 * kRuns; ++i) cache.remember({&ids[2 * i], 2, 0}, 2);
  for (std::uint32_t i = 0; i < 2 * kRuns; ++i) ASSERT_EQ(cache.match({&ids[2 * i], 2, 0}, 2), 2U);
  EXPECT_TRUE(cache.consistent());
}

TEST(PrefixCache, SharesBlocksByReference) {
  PrefixCache cache(8, 4);
  PrefixCache::Held a;
  PrefixCache::Held b;
  ASSERT_TRUE(cache.hold(prompt_of(1), 4, a, 1));
  ASSERT_TRUE(cache.hold(prompt_of(1), 4, b, 1));
  EXPECT_EQ(cache.used(), 6U);
  cache.release(a, 1);
  EXPECT_EQ(cache.used(), 5U);
  cache.release(b, 1);
  EXPECT_EQ(cache.used(), 0U);
  EXPECT_EQ(cache.cached(), 6U);
}

TEST(V1Engine, CutsPromptsAndSharesPassesWithDecodes) {
  std::vector<V1Request> requests(2);
  requests[0] = {prompt_of(1), 8, 3};
  requests[1] = {prompt_of(4, 4), 30, 1};
  V1Engine engine({100, 4, 2, 16, 8}, requests);
  std::vector<V1Id> first;
  std::vector<V1Id> done;
  engine.enqueue(0);
  engine.enqueue(1);
  V1Pass pass = engine.schedule();
  EXPECT_EQ(pass.prefill_tokens, 16U);  // 8 and 8 of 30
  engine.complete(1, first, done);
  EXPECT_EQ(first, std::vector<V1Id>{0});
  pass = engine.schedule();
  EXPECT_EQ(pass.decodes, 1U);
  EXPECT_EQ(pass.prefill_tokens, 15U);
  EXPECT_EQ(pass.pairs, 15U * 8 + 15 * 16 / 2);
}

TEST(V1Engine, ComputesOnlyWhatIsNotCached) {
  std::vector<V1Request> requests(2);
  requests[0] = requests[1] = {prompt_of(2), 16, 1};
  V1Engine engine({100, 4, 2, 64, 8}, requests);
  std::vector<V1Id> first;
  std::vector<V1Id> done;
  engine.enqueue(0);
  EXPECT_EQ(engine.schedule().prefill_tokens, 16U);
  engine.complete(1, first, done);
  engine.enqueue(1);
  EXPECT_EQ(engine.schedule().prefill_tokens, 4U);  // one token has to be computed, so a whole block
  EXPECT_EQ(requests[1].hit_tokens, 12U);
}

// Runs all requests, the first by itself; false when they do not end.
bool end_all(V1Engine& engine, const std::vector<V1Request>& requests) {
  std::vector<V1Id> first;
  std::vector<V1Id> done;
  V1Id next = 0;
  for (int step = 0; step < 1000; ++step) {
    if (next == 0 || (next < requests.size() && engine.running() + engine.waiting() == 0)) {
      EXPECT_TRUE(engine.enqueue(next++));
    }
    const V1Pass pass = engine.schedule();
    if (pass.run > 0) engine.complete(1, first, done);
    EXPECT_TRUE(engine.cache().consistent());
    const bool ended = std::ranges::all_of(requests, [](const V1Request& r) { return r.state == V1State::kDone; });
    if (ended) return engine.cache().used() == 0;
  }
  return false;
}

// The second request has room, but not beside all that is cached of its last unit: 33 of 63 blocks are its own.
TEST(V1Engine, NeedsNoMoreOfAUnitThanItsPrompt) {
  for (const std::uint32_t chunk_tokens : {8192U, 16U}) {
    SCOPED_TRACE(chunk_tokens);
    std::vector<V1Request> requests(2);
    requests[0] = {prompt_of(2), 1008, 16};
    requests[1] = {prompt_of(2), 528, 48};
    V1Engine engine({64, 16, 32, chunk_tokens, 8}, requests);
    EXPECT_TRUE(end_all(engine, requests));
    EXPECT_EQ(engine.preemptions(), 0U);
  }
}

// Has five blocks of the longer prompts, which take until the test says so.
class FiveBlocks final : public OtherTier {
 public:
  std::uint32_t match(const V1Request& r, std::uint32_t have, std::uint32_t most) override {
    return r.prompt < 20 ? have : std::min(std::max(have, 5U), most);
  }
  void fetch(V1Id, std::uint32_t, std::uint32_t) override {}
};

// The first is sent back while the second is being fetched, which then caches more of their unit than fits beside the
// blocks that the first needs now.
TEST(V1Engine, AdmitsWhoeverHasRoomWhenNobodyRuns) {
  std::vector<V1Request> requests(2);
  requests[0] = {prompt_of(1), 4, 24};
  requests[1] = {prompt_of(1), 24, 1};
  FiveBlocks tier;
  V1Engine engine({8, 4, 8, 64, 8}, requests, &tier);
  std::vector<V1Id> first;
  std::vector<V1Id> done;
  EXPECT_TRUE(engine.enqueue(0));
  for (int pass = 0; pass < 100 && requests[0].state != V1State::kDone; ++pass) {
    if (engine.schedule().run > 0) engine.complete(1, first, done);
    if (pass == 0) engine.enqueue(1);
    if (requests[0].preemptions == 1 && requests[1].state == V1State::kLoading) engine.loaded(1);
  }
  EXPECT_EQ(requests[0].preemptions, 1U);
  EXPECT_EQ(static_cast<int>(requests[1].state), static_cast<int>(V1State::kDone));
  EXPECT_EQ(static_cast<int>(requests[0].state), static_cast<int>(V1State::kDone));
}

// Without preemption blocks are promised; one unit's, which two requests share, stay when the larger request ends.
TEST(V1Engine, NeverPreemptsWherePreemptionIsOff) {
  std::vector<V1Request> requests(3);
  requests[0] = {prompt_of(1), 4, 13};      // 5 blocks
  requests[1] = {prompt_of(1), 16, 2};      // 5 blocks
  requests[2] = {prompt_of(1, 4), 16, 12};  // 7 blocks
  V1Engine engine({12, 4, 4, 64, 8, true, false}, requests);
  EXPECT_TRUE(engine.enqueue(0));
  EXPECT_TRUE(engine.enqueue(1));
  EXPECT_TRUE(engine.enqueue(2));
  std::vector<V1Id> first;
  std::vector<V1Id> done;
  for (int pass = 0; pass < 100 && engine.running() + engine.waiting() > 0; ++pass) {
    if (engine.schedule().run > 0) engine.complete(1, first, done);
  }
  for (const V1Request& r : requests) EXPECT_EQ(static_cast<int>(r.state), static_cast<int>(V1State::kDone));
  EXPECT_EQ(engine.preemptions(), 0U);
}

struct Random4 {
  std::uint32_t operator()(Random& random, std::uint32_t most) const {
    return static_cast<std::uint32_t>(1 + random.below(most));
  }
};

// Random requests in a small engine. Every pass by itself, or whole runs: the same requests end after the same passes.
std::vector<std::uint64_t> ends(std::uint64_t seed, bool runs, std::uint64_t& preemptions) {
  Random random(seed);
  constexpr Random4 up_to;
  constexpr std::uint32_t kBlockTokens = 4;
  constexpr std::uint32_t kUnitBlocks = 2;
  std::vector<UnitId> ids(64);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<V1Request> requests(60);
  V1Engine engine({24, kBlockTokens, kUnitBlocks, 16, 6}, requests);
  for (std::uint32_t i = 0; i < requests.size(); ++i) {
    const std::uint32_t prompt = up_to(random, 40);
    const auto first = static_cast<std::uint32_t>(random.below(4)) * 8;  // four families that share prefixes
    const std::uint32_t units = (prompt + 7) / 8;
    requests[i] = {{ids.data() + first, units, 0}, prompt, up_to(random, 40)};
    EXPECT_TRUE(engine.enqueue(i));
  }
  std::vector<std::uint64_t> end(requests.size());
  std::vector<V1Id> first;
  std::vector<V1Id> done;
  std::uint64_t passes = 0;
  while (engine.running() + engine.waiting() > 0) {
    const V1Pass pass = engine.schedule();
    if (pass.run == 0) continue;
    const std::uint64_t count = runs ? 1 + random.below(pass.run) : 1;
    passes += count;
    engine.complete(count, first, done);
    for (const V1Id id : done) end[id] = passes;
    EXPECT_TRUE(engine.cache().consistent());
  }
  EXPECT_EQ(engine.cache().used(), 0U) << "leaked blocks";
  for (const V1Request& r : requests) EXPECT_EQ(r.generated, r.output);
  preemptions += engine.preemptions();
  return end;
}

TEST(V1Engine, RunsEqualSinglePasses) {
  std::uint64_t preemptions = 0;
  for (std::uint64_t seed = 1; seed <= 300 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    EXPECT_EQ(ends(seed, false, preemptions), ends(seed, true, preemptions));
  }
  EXPECT_GT(preemptions, 1000U);
}

TEST(V1Engine, ThePresetIsVllmsServer) {
  const V1Config config = vllm_v1(1000, 32);
  EXPECT_EQ(config.blocks, 1000U);
  EXPECT_EQ(config.block_tokens, 32U);
  EXPECT_EQ(config.chunk_tokens, 8192U);
  EXPECT_EQ(config.seqs_max, 1024U);
  EXPECT_TRUE(config.prefix_caching && config.preemption);
}

}  // namespace
}  // namespace kvd::sched
