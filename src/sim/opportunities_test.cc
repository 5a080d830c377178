// Tests of the study's open opportunities: what the adaptive choice weighs, copies beside passes, and the comparison.
#include "sim/opportunities.h"

#include <algorithm>
#include <span>

#include <gtest/gtest.h>

#include "sim/adaptive_eviction.h"
#include "sim/study_text.h"

namespace kvd::sim {
namespace {

// Blocks of 8 MiB, 20 ms a pass, 0.1 ms a token; a block takes half a millisecond from pinned memory.
EngineCosts costs() {
  EngineCosts c;
  c.step.floor_s = 0.02;
  c.step.token_s = 1e-4;
  c.step.chunked_floor_s = 0.033;
  c.step.decode_batch = {{1, 100}, {0.02, 0.03}};
  c.swap = {2.4e-6, 1 / 24e9};
  c.block_bytes = 8 << 20;
  c.copies_per_block = 64;
  return c;
}

// 768 blocks in 6 GiB, 7 of watermark, one for the next token.
TEST(OpportunitiesInputs, EveryRequestFitsEverySettingOrIsNamed) {
  const StudyInputs built_in = read_inputs(built_in_workloads(), "workloads.json").value();
  EXPECT_EQ(opportunities_fault(built_in), "");
  const auto with = [&](const char* list, Lengths request) {
    StudyInputs inputs = built_in;
    inputs.requests.at(list)[3] = request;
    return opportunities_fault(inputs);
  };
  EXPECT_EQ(with(kListOf9, {12'000, 4384}), "");
  EXPECT_EQ(with(kListOf9, {12'000, 4385}),
            "zipf_128_8192_ratio_0.5[3]: 12000 + 4385 = 16385 tokens, but a pass of 9 128-8K x 32 takes 16384, and all "
            "of a request that was sent back: at most 16384 are expected");
  EXPECT_EQ(
      with(kListOf10, {12'000, 161}),
      "zipf_512_2048_ratio_0.5[3]: 12000 + 161 = 12161 tokens take 761 blocks of 16, but 10a 6 GiB has 768, less 7 "
      "of watermark and one for the next token: at most 12160 tokens are expected");
  EXPECT_NE(with(kListOf10, {1500, 1500}), "") << "a context of 2K in 10b";
}

sched::Victim sixty_blocks(double disturbed) {
  sched::Victim v;
  v.blocks = 60;
  v.tokens = 960;
  v.others = 10;
  v.disturbed = disturbed;
  return v;
}

constexpr double kSeldom = 0.001;
constexpr double kOften = 0.05;

TEST(AdaptiveEviction, TakesTheShorterStallWhereStallsAreTheTail) {
  EXPECT_TRUE(prefers_swap(costs(), false, sixty_blocks(kOften)));
  EngineCosts pageable = costs();
  pageable.swap.byte_s *= 3;
  EXPECT_FALSE(prefers_swap(pageable, false, sixty_blocks(kOften)));
}

TEST(AdaptiveEviction, StallsOthersOnceWhereStallsAreSeldom) {
  EXPECT_FALSE(prefers_swap(costs(), false, sixty_blocks(kSeldom)));
  sched::Victim alone = sixty_blocks(kSeldom);
  alone.others = 0;  // nobody waits: the shorter way
  EXPECT_TRUE(prefers_swap(costs(), false, alone));
}

TEST(AdaptiveEviction, CopiesBesideAPassStallNobody) {
  sched::Victim small = sixty_blocks(kSeldom);
  small.blocks = 10;
  small.tokens = 160;
  EXPECT_EQ(swap_stall(costs(), true, small).times, 0);
  EXPECT_TRUE(prefers_swap(costs(), true, small));
  small.copying = 200;  // its blocks would come after these
  EXPECT_EQ(swap_stall(costs(), true, small).times, 1);
  EXPECT_GT(swap_stall(costs(), true, small).seconds, 0.05);
}

TEST(AdaptiveEviction, SharesThePassThatComputesOthersAgain) {
  sched::Victim v = sixty_blocks(kOften);
  const Stall alone = recompute_stall(costs(), v);
  v.again_seqs = 1;
  v.again_tokens = 960;
  const Stall shared = recompute_stall(costs(), v);
  EXPECT_EQ(alone.times, 1);
  EXPECT_EQ(shared.times, 0);
  EXPECT_LT(shared.seconds, alone.seconds);
}

TEST(AdaptiveEviction, CountsTheKernelThatAttendsToWhatStays) {
  sched::Victim tail = sixty_blocks(kOften);
  tail.blocks = 1;
  tail.tokens = 17;
  tail.context = 943;
  EXPECT_GE(recompute_stall(costs(), tail).seconds, 0.033);
  EXPECT_TRUE(prefers_swap(costs(), false, tail));
}

// Two stalls of 38 ms against one of 63 ms: the shorter stall, but the longer way.
TEST(AdaptiveEviction, ComparesSingleStallsWhereTheTailIsMadeOfThem) {
  EngineCosts c = costs();
  c.swap.byte_s *= 1.5;
  sched::Victim v = sixty_blocks(kOften);
  v.tokens = 600;
  const Stall swap = swap_stall(c, false, v);
  const double again = recompute_stall(c, v).seconds;
  ASSERT_LT(swap.seconds / 2, again);
  ASSERT_GT(swap.seconds, again);
  EXPECT_TRUE(swap_stalls_shorter(c, false, v));
  EXPECT_FALSE(prefers_swap(c, false, v));
  c.swap.byte_s *= 3;
  EXPECT_FALSE(swap_stalls_shorter(c, false, v));
}

TEST(EvictionPlan, TakesTheLeastProductWithinTheLimit) {
  EXPECT_EQ(best_of(std::vector<Outlook>{{100, 0.05}, {101, 0.04}}), 1U);
  EXPECT_EQ(best_of(std::vector<Outlook>{{100, 0.04}, {99, 0.05}}), 0U);
  EXPECT_EQ(best_of(std::vector<Outlook>{{100, 0.05}, {101, 0.04}, {101.5, 0.03}}), 2U);
  EXPECT_EQ(best_of(std::vector<Outlook>{{100, 0.05}, {101, 0.04}, {102.5, 0.01}}), 1U) << "ends too late";
  EXPECT_EQ(best_of(std::vector<Outlook>{{100, 0.05}, {101, 0.04}, {90, 0.041}}), 1U) << "the tail is too long";
}

TEST(EvictionPlan, TakesTheLesserEvilBeyondTheLimit) {
  EXPECT_EQ(best_of(std::vector<Outlook>{{100, 0.05}, {110, 0.04}}), 1U);
  EXPECT_EQ(best_of(std::vector<Outlook>{{100, 0.042}, {110, 0.04}}), 0U);
  EXPECT_EQ(best_of(std::vector<Outlook>{{100, 0}, {110, 0}}), 0U) << "no gaps between tokens";
}

// Requests of many lengths, which come back while others run.
std::vector<Lengths> uneven() {
  std::vector<Lengths> requests;
  for (std::uint32_t i = 0; i < 40; ++i) requests.push_back({100 + i * 37 % 150, 80 + i * 53 % 300});
  return requests;
}

EngineRun evicting_run(sched::Eviction eviction, double slower) {
  sched::Config config = sched::vllm_0_4_2(100, 2048);
  config.eviction = eviction;
  config.host_blocks = 10'000;
  EngineCosts c = costs();
  c.swap.copy_s *= slower;
  c.swap.byte_s *= slower;
  c.track_itl = true;
  return run_engine(config, uneven(), c);
}

Outlook outcome(const EngineRun& run) { return {run.seconds, itl_p99(run.itl_s)}; }

// Copies that are nearly free, or nearly endless: what is played out decides, and the whole run goes one way.
TEST(EvictionPlan, FollowsTheWayThatPlaysOutBest) {
  const EngineRun cheap = evicting_run(sched::Eviction::kAdaptive, 0.01);
  EXPECT_GT(cheap.counts.swaps_out, 5U);
  EXPECT_EQ(cheap.counts.recomputes, 0U);
  const EngineRun dear = evicting_run(sched::Eviction::kAdaptive, 100);
  EXPECT_GT(dear.counts.recomputes, 5U);
  EXPECT_EQ(dear.counts.swaps_out, 0U);
}

// In makespan and in the tail, wherever one of both does.
TEST(EvictionPlan, KeepsTheLimit) {
  int possible = 0;
  for (const double slower : {0.25, 0.5, 1.0, 1.5, 2.0, 4.0, 8.0}) {
    const Outlook again = outcome(evicting_run(sched::Eviction::kRecompute, slower));
    const Outlook swap = outcome(evicting_run(sched::Eviction::kSwap, slower));
    const Outlook both = outcome(evicting_run(sched::Eviction::kAdaptive, slower));
    const double seconds = kWorseAtMost * std::min(again.seconds, swap.seconds);
    const double itl_p99_s = kWorseAtMost * std::min(again.itl_p99_s, swap.itl_p99_s);
    const auto keeps = [&](const Outlook& o) { return o.seconds <= seconds && o.itl_p99_s <= itl_p99_s; };
    if (!keeps(again) && !keeps(swap)) continue;
    ++possible;
    EXPECT_TRUE(keeps(both)) << slower;
  }
  EXPECT_GE(possible, 4);
}

EngineRun swapping_run(bool async, double slower) {
  sched::Config config = sched::vllm_0_4_2(100, 2048);
  config.eviction = sched::Eviction::kSwap;
  config.host_blocks = 10'000;
  config.async_swap = async;
  EngineCosts c = costs();
  c.swap.byte_s *= slower;
  return run_engine(config, std::vector<Lengths>(20, Lengths{200, 300}), c);
}

TEST(EngineRun, HidesAsynchronousCopiesBehindPasses) {
  const EngineRun before = swapping_run(false, 1);
  const EngineRun beside = swapping_run(true, 1);
  EXPECT_GT(before.counts.swaps_out, 5U);
  EXPECT_GT(beside.counts.swaps_out, 5U);
  EXPECT_LT(beside.seconds, before.seconds);
  EXPECT_EQ(beside.tokens, before.tokens);
  EXPECT_EQ(beside.passes.back().host_blocks, 0U);
}

TEST(EngineRun, WaitsForCopiesThatNoPassCanHide) {
  const EngineRun fast = swapping_run(true, 1);
  const EngineRun slow = swapping_run(true, 1000);
  EXPECT_EQ(slow.tokens, fast.tokens);
  EXPECT_GT(slow.seconds, 2 * fast.seconds);
}

const OpportunityRow& arm(const std::vector<OpportunityRow>& rows, const std::string& name) {
  return *std::ranges::find(rows, name, &OpportunityRow::arm);
}

TEST(Opportunities, ComparesWithTheBetterOfBoth) {
  const model::StudyFit fit = model::fit_study(read_tables(built_in_calibration(), "calibration.json").value());
  const StudyInputs inputs = read_inputs(built_in_workloads(), "workloads.json").value();
  ASSERT_EQ(opportunity_settings(), 24U);
  const auto rows = opportunities(fit, inputs, 20, 3);
  EXPECT_EQ(rows.front().setting, "10a 24 GiB");
  EXPECT_EQ(rows.size(), 12U);
  for (const OpportunityRow& row : rows) {
    EXPECT_EQ(row.seeds, 3U);
    EXPECT_GT(row.recomputes + row.swaps, 0) << row.arm;
  }
  EXPECT_EQ(arm(rows, "recompute").swaps, 0);
  EXPECT_EQ(arm(rows, "swap").recomputes, 0);
  // The better of both is one of them with every seed.
  EXPECT_GE(arm(rows, "recompute").worst_makespan, 1);
  EXPECT_GE(arm(rows, "swap").worst_makespan, 1);
  EXPECT_LE(arm(rows, "swap").makespan_gain.mean, 0);
  // The same requests in the same order take longer where copies are slower.
  EXPECT_GT(arm(rows, "swap, pageable").makespan_s.mean, arm(rows, "swap").makespan_s.mean);
  EXPECT_LT(arm(rows, "asynchronous swap").makespan_s.mean, arm(rows, "swap").makespan_s.mean);

  // The adaptive choice keeps its limit, in makespan and in the tail, with every seed.
  EXPECT_LE(arm(rows, "adaptive").worst_makespan, kWorseAtMost);
  EXPECT_LE(arm(rows, "adaptive").worst_itl_p99, kWorseAtMost);

  const auto fixed = opportunities(fit, inputs, 0, 3);
  EXPECT_EQ(fixed.front().setting, "9 1K x 32");
  EXPECT_EQ(fixed.front().seeds, 1U);
}

}  // namespace
}  // namespace kvd::sim
