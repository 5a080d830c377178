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

}  // namespace
}  // namespace kvd::sched
