// Tests of the scheduler's decisions: what vLLM 0.4.2 does in small situations that can be followed by hand.
#include "sched/scheduler.h"

#include <vector>

#include <gtest/gtest.h>

namespace kvd::sched {
namespace {

Config small(std::uint32_t blocks, std::uint32_t pass_tokens) {
  Config config = vllm_0_4_2(blocks, pass_tokens);
  config.block_tokens = 4;
  config.host_blocks = 100;
  return config;
}

Config swapping(std::uint32_t blocks) {
  Config config = small(blocks, 64);
  config.eviction = Eviction::kSwap;
  return config;
}

void run_pass(Scheduler& s) {
  s.schedule();
  s.complete();
}

struct Moved {
  std::uint32_t out = 0;
  std::uint32_t in = 0;
  std::uint32_t tokens = 0;
};

// Runs what there is to its end.
Moved finish(Scheduler& s) {
  Moved moved;
  while (!s.idle()) {
    const Pass& pass = s.schedule();
    moved.out += pass.blocks_out;
    moved.in += pass.blocks_in;
    moved.tokens += pass.tokens;
    s.complete();
  }
  return moved;
}

// Two requests that outgrow four blocks together.
void add_two(Scheduler& s) {
  s.add(6, 6);
  s.add(6, 6);
}

TEST(Scheduler, PrefillsComeFirstAndAlone) {
  Scheduler s(small(100, 16));
  s.add(8, 2);
  s.add(8, 2);
  s.add(4, 2);
  EXPECT_EQ(s.schedule().tokens, 16U);  // two whole prompts fill the pass
  s.complete();
  const Pass& pass = s.schedule();
  ASSERT_EQ(pass.items.size(), 1U);  // the third one, although two could decode
  EXPECT_TRUE(pass.items[0].prefill);
}

TEST(Scheduler, MixedPassesHoldDecodesAndWholePrompts) {
  Config config = small(100, 16);
  config.batching = Batching::kMixed;
  Scheduler s(config);
  s.add(12, 3);
  s.add(12, 3);
  EXPECT_EQ(s.schedule().items.size(), 1U);
  s.complete();
  const Pass& pass = s.schedule();
  ASSERT_EQ(pass.items.size(), 2U);
  EXPECT_FALSE(pass.items[0].prefill);
  EXPECT_EQ(pass.items[1].tokens, 12U);
}

TEST(Scheduler, ChunksFillThePassBehindTheDecodes) {
  Config config = small(100, 8);
  config.batching = Batching::kChunked;
  Scheduler s(config);
  s.add(6, 3);
  s.add(20, 1);
  EXPECT_EQ(s.schedule().items[1].tokens, 2U);
  s.complete();
  const Pass& pass = s.schedule();
  EXPECT_EQ(pass.items[0].tokens, 1U);
  EXPECT_EQ(pass.items[1].tokens, 7U);
  EXPECT_EQ(pass.items[1].context, 2U);
}

// Two prompts of one length are balanced and go whole; a long one among short ones is cut while somebody decodes.
TEST(Scheduler, SelectiveChunksCutOnlyWhilePromptsAreImbalanced) {
  Config config = small(100, 32);
  config.batching = Batching::kSelective;
  config.chunk_tokens = 4;
  Scheduler balanced(config);
  balanced.add(4, 9);
  run_pass(balanced);
  balanced.add(12, 2);
  balanced.add(12, 2);
  EXPECT_EQ(balanced.schedule().tokens, 1U + 12 + 12);

  Scheduler uneven(config);
  uneven.add(20, 9);
  uneven.add(4, 9);
  EXPECT_EQ(uneven.schedule().tokens, 24U);  // nobody decodes yet: nobody waits
  uneven.complete();
  uneven.add(10, 2);
  uneven.add(2, 2);
  const Pass& cut = uneven.schedule();
  ASSERT_EQ(cut.items.size(), 3U);
  EXPECT_EQ(cut.items[2].tokens, 4U);
  uneven.complete();
  EXPECT_EQ(uneven.schedule().items[2].context, 4U);
}

TEST(Scheduler, SelectiveChunksCutWhatNoPassHolds) {
  Config config = small(100, 16);
  config.batching = Batching::kSelective;
  Scheduler s(config);
  s.add(20, 1);
  EXPECT_EQ(s.schedule().tokens, 16U);
  s.complete();
  EXPECT_EQ(s.schedule().tokens, 4U);
}

// The later one goes, and comes back when the first is done.
TEST(Scheduler, RecomputesTheRequestThatCameLast) {
  Scheduler s(small(4, 64));
  add_two(s);
  while (s.request(1).state != State::kWaiting || !s.request(1).resuming) run_pass(s);
  EXPECT_EQ(s.request(1).computed, 0U);
  EXPECT_EQ(s.request(0).state, State::kRunning);
  while (s.request(0).state == State::kRunning) run_pass(s);
  const Pass& back = s.schedule();
  ASSERT_EQ(back.items.size(), 1U);
  EXPECT_TRUE(back.items[0].resumed);
  EXPECT_EQ(back.items[0].tokens, s.request(1).length());
}

TEST(Scheduler, SwapsOutAndBackInWithoutComputingAgain) {
  Scheduler s(swapping(4));
  add_two(s);
  const Moved moved = finish(s);
  EXPECT_EQ(moved.out, 2U);
  EXPECT_EQ(moved.in, 2U);
  EXPECT_EQ(moved.tokens, 2U * (6 + 5));
  EXPECT_EQ(s.counts().recomputes, 0U);
}

State state_of(const Scheduler& s, RequestId id) { return s.request(id).state; }

// Both fill four blocks; the first needs a fifth, which is free when the second has been copied out.
TEST(Scheduler, AsynchronousSwapsHoldTheirBlocksUntilTheyAreCopied) {
  Config config = swapping(4);
  config.async_swap = true;
  Scheduler s(config);
  add_two(s);
  while (s.copies().empty()) run_pass(s);
  EXPECT_EQ(state_of(s, 1), State::kSwappingOut);
  EXPECT_EQ(s.pool().free(), 0U);
  while (!s.schedule().items.empty()) s.complete();  // as long as it has room
  EXPECT_EQ(s.request(0).length(), 9U);              // eight are cached, two blocks
  EXPECT_EQ(state_of(s, 0), State::kRunning);
  s.copied();
  EXPECT_EQ(state_of(s, 1), State::kSwapped);
  EXPECT_EQ(s.pool().free(), 2U);
  EXPECT_EQ(s.schedule().items.size(), 1U);
  EXPECT_EQ(s.pool().free(), 1U);
}

TEST(Scheduler, AsynchronousSwapsJoinPassesWhenTheyAreCopiedIn) {
  Config config = swapping(4);
  config.async_swap = true;
  Scheduler s(config);
  add_two(s);
  while (s.copies().empty()) run_pass(s);
  s.copied();
  while (s.copies().empty()) run_pass(s);
  EXPECT_EQ(state_of(s, 0), State::kFinished);
  EXPECT_EQ(state_of(s, 1), State::kSwappingIn);
  EXPECT_TRUE(s.schedule().items.empty());
  EXPECT_GT(s.host_used(), 0U);
  s.copied();
  EXPECT_EQ(s.host_used(), 0U);
  const Pass& back = s.schedule();
  ASSERT_EQ(back.items.size(), 1U);
  EXPECT_TRUE(back.items[0].resumed);
  EXPECT_EQ(back.items[0].tokens, 1U);
}

// What the choice is told: all of a request or the tail that went on average, and who else waits.
TEST(Scheduler, TellsTheAdaptiveChoiceWhatIsAtStake) {
  std::vector<Victim> victims;
  for (const bool partial : {false, true}) {
    Config config = small(4, 64);
    config.eviction = Eviction::kAdaptive;
    config.partial = partial;
    config.prefers_swap = [&](const Victim& victim) {
      victims.push_back(victim);
      return false;
    };
    Scheduler s(config);
    add_two(s);
    while (s.counts().recomputes == 0) run_pass(s);
  }
  ASSERT_EQ(victims.size(), 2U);
  EXPECT_EQ(victims[0].blocks, 2U);
  EXPECT_EQ(victims[0].context, 0U);
  EXPECT_EQ(victims[0].others, 1U);
  EXPECT_EQ(victims[1].blocks, 1U);
  EXPECT_EQ(victims[1].context, 4U);
  EXPECT_EQ(victims[1].context + victims[1].tokens, victims[0].tokens);
  EXPECT_EQ(victims[0].disturbed, 0);
}

// B's prompt made A's token late: one of the last kDisturbedTokens.
TEST(Scheduler, TellsTheAdaptiveChoiceHowManyTokensCameLate) {
  double disturbed = -1;
  Config config = small(4, 64);
  config.eviction = Eviction::kAdaptive;
  config.prefers_swap = [&](const Victim& victim) {
    disturbed = victim.disturbed;
    return false;
  };
  Scheduler s(config);
  s.add(6, 6);
  run_pass(s);
  s.add(6, 6);
  run_pass(s);
  s.schedule();
  EXPECT_NEAR(disturbed * kDisturbedTokens, 1, 0.01);
}

// A copy goes on by itself, the other's way.
TEST(Scheduler, SupposesOnACopy) {
  Config config = swapping(4);
  Scheduler s(config);
  s.add(6, 6);
  s.add(6, 6);
  run_pass(s);
  Scheduler ahead = s;
  ahead.suppose([](const Victim&) { return false; });
  finish(ahead);
  EXPECT_EQ(ahead.request(0).generated, 6U);
  EXPECT_EQ(ahead.request(1).generated, 6U);
  EXPECT_GT(ahead.counts().recomputes, 0U);
  EXPECT_EQ(s.request(0).generated, 1U);
  EXPECT_EQ(s.counts().recomputes, 0U);
  finish(s);
  EXPECT_EQ(s.request(0).generated, 6U);
  EXPECT_GT(s.counts().swaps_out, 0U);
}

TEST(Scheduler, PartialEvictionTakesTheTailOnly) {
  Config config = swapping(6);
  config.partial = true;
  Scheduler s(config);
  s.add(6, 12);
  s.add(12, 4);
  const std::uint32_t out = finish(s).out;
  EXPECT_GT(out, 0U);
  EXPECT_LT(out, 4U);  // the whole request has 4
  EXPECT_EQ(s.request(1).generated, 4U);
}

TEST(Scheduler, RejectsWhatNeverFits) {
  Scheduler s(small(4, 64));
  s.add(17, 1);
  s.add(65, 1);
  s.add(4, 1);
  EXPECT_EQ(s.schedule().items.size(), 1U);
  EXPECT_EQ(s.request(0).state, State::kRejected);
  EXPECT_EQ(s.request(1).state, State::kRejected);
}

TEST(Scheduler, AFullHostTurnsSwapsIntoRecomputations) {
  Config config = swapping(4);
  config.host_blocks = 1;
  Scheduler s(config);
  add_two(s);
  finish(s);
  EXPECT_GT(s.counts().host_full, 0U);
  EXPECT_EQ(s.counts().recomputes, s.counts().host_full);
}

}  // namespace
}  // namespace kvd::sched
