// Tests of the fleet: analytic runs against single passes, conservation, and what depots and policies must do.
#include "sim/fleet.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "model/catalogue_engine.h"

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
  config.pass = model::qwen3_32b_h100x2().pass;
  config.keep_records = true;
  config.tiers.kv_bytes_per_token = 262144;
  config.tiers.layers = 64;
  return config;
}

TierConfig bounded_tier(double bytes_per_s, std::uint64_t tokens) {
  TierConfig tier;
  tier.on = true;
  tier.tokens_max = tokens;
  tier.read_bytes_per_s = tier.write_bytes_per_s = bytes_per_s;
  tier.latency_s = 1e-4;
  return tier;
}

bool same(const std::vector<RequestRecord>& a, const std::vector<RequestRecord>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const RequestRecord& x = a[i];
    const RequestRecord& y = b[i];
    if (x.arrival != y.arrival || x.first_token != y.first_token || x.finish != y.finish || x.instance != y.instance ||
        x.hit_tokens != y.hit_tokens || x.loaded_tokens != y.loaded_tokens || x.preemptions != y.preemptions ||
        x.scheduled != y.scheduled) {
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
          if (depot) config.tiers[Tier::kDepot] = bounded_tier(5e9, 40000);
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
  config.tiers[Tier::kDepot] = bounded_tier(50e9, 0);
  const FleetResult shared = simulate(config, trace);
  EXPECT_EQ(alone.loaded_share, 0);
  EXPECT_GT(shared.hit_share + shared.loaded_share, alone.hit_share + 0.1);
  EXPECT_LT(shared.ttft.mean, alone.ttft.mean);
}

// All tiers, bounded in every way, loads ahead of passes and inside them: nothing may be lost, and analytic runs must
// still be what single passes are.
TEST(Fleet, TiersKeepSkippingExactAndLoseNothing) {
  for (const bool layerwise : {false, true}) {
    for (const char* const policy : {"least-request", "prefix-affinity"}) {
      for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        const trace::Trace trace = make_trace(seed, 1200);
        FleetConfig config = small_fleet(260);
        config.policy = policy;
        config.tiers.layerwise = layerwise;
        config.tiers[Tier::kDram] = bounded_tier(20e9, 8000);
        config.tiers[Tier::kFlash] = bounded_tier(5e9, 16000);
        config.tiers[Tier::kFlash].write_budget_per_s = 15e6;
        config.tiers[Tier::kDepot] = bounded_tier(10e9, 40000);
        config.tiers[Tier::kDepot].total_read_per_s = 12e9;
        config.tiers[Tier::kDepot].total_write_per_s = 6e9;
        const FleetResult skipped = simulate(config, trace);
        config.skip = false;
        config.sample_s = 0.7;  // looking at a fleet must not change it
        const FleetResult stepped = simulate(config, trace);
        EXPECT_TRUE(same(skipped.records, stepped.records)) << policy << " " << layerwise;
        EXPECT_LT(skipped.passes_executed, stepped.passes_executed);
        EXPECT_TRUE(skipped.tokens_conserved && skipped.blocks_conserved && skipped.loads_conserved);
        EXPECT_LT(skipped.little_error, 1e-6);
        EXPECT_GT(skipped.loaded_share, 0.05);
        for (const TierTraffic& t : skipped.traffic) EXPECT_GT(t.read_bytes, 0);
        const TierTraffic& flash = skipped.traffic[static_cast<std::size_t>(Tier::kFlash)];
        EXPECT_GT(flash.refused_bytes, 0);
        const double span = static_cast<double>(skipped.records.back().finish) * 1e-12 + kBudgetBurstSeconds;
        EXPECT_LE(flash.written_bytes, 3 * 15e6 * span) << "three instances' budgets";
        ASSERT_GT(stepped.samples.size(), 10U);
        EXPECT_GT(stepped.samples.back().loaded_tokens, 0);
      }
    }
  }
}

TEST(Fleet, LogsItsPasses) {
  const trace::Trace trace = make_trace(5, 200);
  FleetConfig config = small_fleet(2000);
  config.keep_passes = true;
  config.skip = false;
  const FleetResult result = simulate(config, trace);
  ASSERT_EQ(result.pass_log.size(), result.passes);
  std::uint64_t prompts = 0;
  for (const FleetPass& p : result.pass_log) {
    prompts += p.pass.prefill_tokens;
    EXPECT_EQ(
        p.end - p.start,
        config.pass.pass(static_cast<std::int64_t>(p.pass.prefill_tokens), static_cast<std::int64_t>(p.pass.pairs),
                         static_cast<std::int64_t>(p.pass.decodes), static_cast<std::int64_t>(p.pass.context)));
  }
  std::uint64_t asked = 0;
  for (const RequestRecord& r : result.records) asked += r.prompt - r.hit_tokens;
  EXPECT_EQ(result.preemptions, 0U);
  EXPECT_EQ(prompts, asked);
}

TEST(Fleet, WithoutPreemptionEveryAdmittedRequestHasRoom) {
  const trace::Trace trace = make_trace(6, 800);
  FleetConfig config = small_fleet(260);
  EXPECT_GT(simulate(config, trace).preemptions, 0U);
  config.engine.preemption = false;
  const FleetResult result = simulate(config, trace);
  EXPECT_EQ(result.preemptions, 0U);
  EXPECT_EQ(result.requests, 800U);
  EXPECT_TRUE(result.tokens_conserved && result.blocks_conserved);
}

TEST(Fleet, WithoutPrefixCachingOnlyTiersHit) {
  const trace::Trace trace = make_trace(7, 300);
  FleetConfig config = small_fleet(2000);
  config.engine.prefix_caching = false;
  EXPECT_EQ(simulate(config, trace).hit_share, 0);
  config.tiers[Tier::kDepot] = bounded_tier(50e9, 0);
  const FleetResult result = simulate(config, trace);
  EXPECT_EQ(result.hit_share, 0);
  EXPECT_GT(result.loaded_share, 0.3);
}

TEST(Fleet, SamplesAreAsManyAsAChartIsWide) {
  FleetSeries series(1000);
  std::vector<model::Picoseconds> due;
  for (int i = 0; i < 5000; ++i) {
    due.push_back(series.due());
    FleetSample s;
    s.time_s = static_cast<double>(series.due());
    series.add(s);
  }
  const std::vector<FleetSample> samples = series.take();
  ASSERT_GE(samples.size(), kSamplesMax / 2);
  ASSERT_LT(samples.size(), kSamplesMax);
  const double apart = samples[1].time_s - samples[0].time_s;
  for (std::size_t i = 1; i < samples.size(); ++i) EXPECT_EQ(samples[i].time_s - samples[i - 1].time_s, apart);
  EXPECT_EQ(static_cast<double>(series.due()) - samples.back().time_s, apart);
}

TEST(Fleet, RejectsWhatCanNeverFit) {
  trace::Trace trace = make_trace(3, 20);
  trace.requests[5].output_tokens = 1'000'000;
  const FleetResult result = simulate(small_fleet(2000), trace);
  EXPECT_EQ(result.rejected, 1U);
  EXPECT_EQ(result.rejected_shortest, trace.requests[5].prompt_tokens + 1'000'000U);
  EXPECT_EQ(result.requests, 19U);
  EXPECT_TRUE(result.tokens_conserved);
}

TEST(Fleet, CountsTheWarmUpApart) {
  const trace::Trace trace = make_trace(8, 200);
  FleetConfig config = small_fleet(2000);
  config.warmup_s = trace.requests[50].arrival_s;
  const FleetResult result = simulate(config, trace);
  EXPECT_EQ(result.warmup_requests, 50U);
  EXPECT_EQ(result.requests, 150U);
  EXPECT_EQ(result.ttft.count, 150U);
  EXPECT_EQ(result.unfinished, 0U);
  EXPECT_NEAR(result.last_arrival_s, trace.requests.back().arrival_s, 1e-9);
}

// How many requests are in flight at most, by their records.
int most_in_flight(const FleetResult& result) {
  std::vector<std::pair<model::Picoseconds, int>> steps;
  for (const RequestRecord& r : result.records) {
    steps.emplace_back(r.arrival, 1);
    steps.emplace_back(r.finish, -1);
  }
  std::ranges::sort(steps);  // of equal times, ends first
  int now = 0;
  int most = 0;
  for (const auto& [time, step] : steps) most = std::max(most, now += step);
  return most;
}

TEST(Fleet, ALoadGeneratorHoldsBackWhatIsTooMuchInFlight) {
  const trace::Trace trace = make_trace(9, 1500);
  for (const char* const policy : {"random", "load", "prefix-affinity"}) {
    FleetConfig config = small_fleet(260);
    config.policy = policy;
    const FleetResult open = simulate(config, trace);
    ASSERT_GT(most_in_flight(open), 12);
    config.in_flight_max = 12;
    FleetResult held = simulate(config, trace);
    EXPECT_EQ(most_in_flight(held), 12);
    EXPECT_LT(held.little_error, 1e-6);
    EXPECT_TRUE(held.tokens_conserved && held.blocks_conserved);
    EXPECT_GT(held.ttft_scheduled.mean, held.ttft.mean);
    EXPECT_EQ(held.ttft_scheduled.count, held.requests);
    config.skip = false;
    config.sample_s = 0.3;
    EXPECT_TRUE(same(held.records, simulate(config, trace).records)) << policy;
    std::ranges::sort(held.records, {}, [](const RequestRecord& r) { return std::pair(r.scheduled, r.arrival); });
    std::size_t late = 0;
    for (std::size_t i = 0; i < held.records.size(); ++i) {
      const RequestRecord& r = held.records[i];
      EXPECT_GE(r.arrival, r.scheduled);
      EXPECT_GE(r.arrival, held.records[i == 0 ? 0 : i - 1].arrival) << "requests are sent in order";
      late += r.arrival > r.scheduled;
    }
    EXPECT_GT(late, 100U);
    EXPECT_LT(late, held.records.size());
    config = small_fleet(260);
    config.policy = policy;
    config.in_flight_max = 100'000;
    EXPECT_TRUE(same(open.records, simulate(config, trace).records)) << "a limit that nothing reaches";
  }
}

TEST(Fleet, WhatALoadGeneratorHoldsBackIsAQueueThatMayGrow) {
  const trace::Trace trace = make_trace(4, 3000);
  FleetConfig config = small_fleet(2000);
  config.in_flight_max = 200;
  EXPECT_FALSE(simulate(config, trace).unstable);
  config.in_flight_max = 20;  // less than 8 an instance: only what is held back can be seen to grow
  EXPECT_TRUE(run_fleet(config, *trace_source(trace, {.speed = 40})).unstable);
}

// Queues, preemptions and evictions make engines' memory grow and go in both.
TEST(Fleet, IsTheSameInHugePagesAsInOrdinaryOnes) {
  const trace::Trace trace = make_trace(11, 2000);
  for (const char* const policy : {"load", "prefix-affinity"}) {
    FleetConfig config = small_fleet(200);
    config.instances = 300;
    config.policy = policy;
    config.tiers[Tier::kDram] = bounded_tier(20e9, 4000);
    config.tiers[Tier::kDepot] = bounded_tier(5e9, 40000);
    ASSERT_GT(config.instances, config.ordinary_pages_max);
    const TraceOptions load{.copies = 3, .speed = 400};
    const FleetResult huge = run_fleet(config, *trace_source(trace, load));
    config.ordinary_pages_max = config.instances;
    const FleetResult ordinary = run_fleet(config, *trace_source(trace, load));
    EXPECT_TRUE(same(huge.records, ordinary.records)) << policy;
    EXPECT_TRUE(huge.tokens_conserved && huge.blocks_conserved && huge.loads_conserved);
    EXPECT_GT(huge.preemptions, 100U);
    EXPECT_GT(huge.hit_share, 0);
    EXPECT_GT(huge.loaded_share, 0);
    EXPECT_EQ(huge.records.size() + huge.rejected, 6000U);
  }
}

// Of the intervals of so many seconds in which several requests came, the share in which all went to one instance.
double sent_together(const FleetResult& result, double interval_s) {
  std::map<std::int64_t, std::vector<std::uint32_t>> sent;
  for (const RequestRecord& r : result.records) sent[r.arrival / model::picoseconds(interval_s)].push_back(r.instance);
  std::erase_if(sent, [](const auto& entry) { return entry.second.size() < 2; });
  const auto together = std::ranges::count_if(sent, [](const auto& entry) {
    return std::ranges::all_of(entry.second, [&](std::uint32_t i) { return i == entry.second.front(); });
  });
  return static_cast<double>(together) / static_cast<double>(sent.size());
}

TEST(Fleet, ARouterMayKnowQueuesAsTheyWere) {
  const trace::Trace trace = make_trace(10, 1500);
  FleetConfig config = small_fleet(260);
  config.policy = "load";
  const FleetResult now = simulate(config, trace);
  config.metrics_age_s = 1e-12;
  EXPECT_TRUE(same(now.records, simulate(config, trace).records)) << "an age of nothing";
  config.metrics_age_s = 2;
  const FleetResult old = simulate(config, trace);
  // Whatever looks best when it is read looks best until it is read again: some ten requests.
  EXPECT_GT(sent_together(old, 2), 0.9);
  EXPECT_LT(sent_together(now, 2), 0.1);
  config.skip = false;
  config.sample_s = 0.7;
  EXPECT_TRUE(same(old.records, simulate(config, trace).records));
}

TEST(Fleet, SaysWhenQueuesGrow) {
  const trace::Trace trace = make_trace(4, 3000);
  FleetConfig config = small_fleet(2000);
  EXPECT_FALSE(simulate(config, trace).unstable);
  const auto source = trace_source(trace, {.speed = 40});
  EXPECT_TRUE(run_fleet(config, *source).unstable);
}

}  // namespace
}  // namespace kvd::sim
