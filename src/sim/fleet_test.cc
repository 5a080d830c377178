// Tests of the fleet: analytic runs against single passes, conservation, and what depots and policies must do.
#include "sim/fleet.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvd::sim {
namespace {

// Requests in families that share prefixes, with more and less room for them.
trace::Trace make_trace(std::uint64_t seed, std::uint32_t requests) {
  Random random(seed);
  trace::Trace trace;
  trace.block_tokens = 64;
  trace.timed = true;
  trace.distinct_blocks = 6 * 40 + requests * 4;
  double now = 0;
  for (std::uint32_t i = 0; i < requests; ++i) {
    now += -0.2 * std::log1p(-random.uniform());
    const auto family = static_cast<std::uint32_t>(random.below(6));
    const auto shared = static_cast<std::uint32_t>(random.below(40));
    const auto own = static_cast<std::uint32_t>(1 + random.below(4));
    trace::Request r;
    r.arrival_s = now;
    r.first_block = static_cast<std::uint32_t>(trace.block_ids.size());
    r.blocks = shared + own;
    r.prompt_tokens = (shared + own - 1) * 64 + 1 + static_cast<std::uint32_t>(random.below(64));
    r.output_tokens = static_cast<std::uint32_t>(1 + random.below(200));
    for (std::uint32_t b = 0; b < shared; ++b) trace.block_ids.push_back(family * 40 + b);
    for (std::uint32_t b = 0; b < own; ++b) trace.block_ids.push_back(6 * 40 + i * 4 + b);
    trace.requests.push_back(r);
  }
  return trace;
}

FleetConfig small_fleet(std::uint32_t blocks) {
  FleetConfig config;
  config.instances = 3;
  config.engine = {blocks, 16, 4, 512, 64};
  config.pass = model::roofline(model::qwen3_32b_h100x2());
  config.keep_records = true;
  return config;
}

bool same(const std::vector<RequestRecord>& a, const std::vector<RequestRecord>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const RequestRecord& x = a[i];
    const RequestRecord& y = b[i];
    if (x.arrival != y.arrival || x.first_token != y.first_token || x.finish != y.finish || x.instance != y.instance ||
        x.hit_tokens != y.hit_tokens || x.loaded_tokens != y.loaded_tokens || x.preemptions != y.preemptions) {
      return false;
    }
  }
  return true;
}

FleetResult simulate(const FleetConfig& config, const trace::Trace& trace) {
  const auto source = trace_source(trace, {});
  return run_fleet(config, *source);
}

TEST(Fleet, TakesRunsOfPassesAtOnceWithoutChangingAnything) {
  std::uint64_t preemptions = 0;
  for (const char* const policy : {"random", "least-request", "load", "prefix-affinity"}) {
    for (const std::uint32_t blocks : {260U, 2000U}) {
      for (const bool depot : {false, true}) {
        for (std::uint64_t seed = 1; seed <= 4; ++seed) {
          const trace::Trace trace = make_trace(seed, 1500);
          FleetConfig config = small_fleet(blocks);
          config.policy = policy;
          config.depot = {depot, 5e9, 1e-4, 40000, 262144};
          const FleetResult skipped = simulate(config, trace);
          config.skip = false;
          const FleetResult stepped = simulate(config, trace);
          EXPECT_TRUE(same(skipped.records, stepped.records)) << policy << " " << blocks << " " << depot;
          EXPECT_EQ(skipped.passes, stepped.passes);
          EXPECT_LT(skipped.passes_executed, stepped.passes_executed);
          EXPECT_TRUE(skipped.tokens_conserved && skipped.blocks_conserved);
          EXPECT_LT(skipped.little_error, 1e-6);
          preemptions += skipped.preemptions;
        }
      }
    }
  }
  EXPECT_GT(preemptions, 100U) << "no shortage was simulated";
}

TEST(Fleet, AFreeFleetServesAtTheSpeedOfItsPasses) {
  trace::Trace trace = make_trace(1, 1);
  FleetConfig config = small_fleet(2000);
  config.engine.chunk_tokens = 8192;
  const FleetResult result = simulate(config, trace);
  const auto prompt = static_cast<std::int64_t>(trace.requests[0].prompt_tokens);
  const auto output = static_cast<std::int64_t>(trace.requests[0].output_tokens);
  const RequestRecord& r = result.records.at(0);
  EXPECT_EQ(r.first_token - r.arrival, config.pass.pass(prompt, prompt * (prompt + 1) / 2, 0, 0));
  EXPECT_EQ(r.finish - r.first_token, config.pass.decode_run(output - 1, 1, prompt));
}

TEST(Fleet, ADepotGivesWhatPrivateCachesLost) {
  const trace::Trace trace = make_trace(2, 600);
  FleetConfig config = small_fleet(260);
  config.policy = "random";
  const FleetResult alone = simulate(config, trace);
  config.depot = {true, 50e9, 1e-4, 0, 262144};
  const FleetResult shared = simulate(config, trace);
  EXPECT_EQ(alone.loaded_share, 0);
  EXPECT_GT(shared.hit_share + shared.loaded_share, alone.hit_share + 0.1);
  EXPECT_LT(shared.ttft.mean, alone.ttft.mean);
}

TEST(Fleet, RejectsWhatCanNeverFit) {
  trace::Trace trace = make_trace(3, 20);
  trace.requests[5].output_tokens = 1'000'000;
  const FleetResult result = simulate(small_fleet(2000), trace);
  EXPECT_EQ(result.rejected, 1U);
  EXPECT_EQ(result.requests, 19U);
  EXPECT_TRUE(result.tokens_conserved);
}

TEST(Fleet, SaysWhenQueuesGrow) {
  const trace::Trace trace = make_trace(4, 3000);
  FleetConfig config = small_fleet(2000);
  EXPECT_FALSE(simulate(config, trace).unstable);
  const auto source = trace_source(trace, {.speed = 40});
  EXPECT_TRUE(run_fleet(config, *source).unstable);
}

TEST(SharedPrefix, FollowsItsStages) {
  const auto source = shared_prefix_source({.stages = {{10, 100}, {50, 100}}});
  Arrival arrival;
  int early = 0;
  int late = 0;
  while (source->next(arrival)) (arrival.time < 100'000'000'000'000 ? early : late) += 1;
  EXPECT_NEAR(early, 1000, 120);
  EXPECT_NEAR(late, 5000, 280);
  EXPECT_EQ(source->unit_tokens(), 1200U);
}

}  // namespace
}  // namespace kvd::sim
