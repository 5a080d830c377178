// Tiers against closed forms: single transfers, shared bandwidth, write budgets, and load, compute and store that
// overlap layer by layer.
#include "sim/tiers.h"

#include <gtest/gtest.h>

#include "model/catalogue_engine.h"
#include "model/closed_form.h"
#include "sim/fleet.h"
#include "sim/testing/layer_pipeline.h"

namespace kvd::sim {
namespace {

using model::Picoseconds;

constexpr double kTokenBytes = 262144;
constexpr std::uint32_t kPrompt = 6400;
constexpr Picoseconds kSecond = 1'000'000'000'000;

trace::Trace prompts(std::uint32_t count, double apart_s, std::uint32_t shared_blocks, std::uint32_t output = 1) {
  trace::Trace trace;
  trace.block_tokens = 64;
  trace.timed = true;
  const std::uint32_t blocks = kPrompt / 64;
  for (std::uint32_t i = 0; i < count; ++i) {
    trace.requests.push_back({i * apart_s, kPrompt, output, i * blocks, blocks});
    for (std::uint32_t b = 0; b < blocks; ++b) {
      trace.block_ids.push_back(b < shared_blocks ? b : 1000 + i * blocks + b);
    }
  }
  trace.distinct_blocks = 1000 + count * blocks;
  return trace;
}

// Engines whose own caches find nothing.
FleetConfig cold_engines(std::uint32_t instances) {
  FleetConfig config;
  config.instances = instances;
  config.engine = {100'000, 16, 4, 8192, 64};
  config.engine.prefix_caching = false;
  config.policy = "round-robin";
  config.pass = model::qwen3_32b_h100x2().pass;
  config.keep_records = true;
  config.tiers.kv_bytes_per_token = kTokenBytes;
  config.tiers.layers = 64;
  return config;
}

TierConfig tier(double bytes_per_s) {
  TierConfig t;
  t.on = true;
  t.read_bytes_per_s = t.write_bytes_per_s = bytes_per_s;
  return t;
}

FleetResult simulate_tiers(const FleetConfig& config, const trace::Trace& trace) {
  return run_fleet(config, *trace_source(trace, {}));
}

Picoseconds ttft(const FleetResult& result, std::size_t i) {
  return result.records.at(i).first_token - result.records.at(i).arrival;
}

Picoseconds compute(const FleetConfig& config, std::int64_t have) {
  const std::int64_t n = kPrompt - have;
  return config.pass.pass(n, n * have + n * (n + 1) / 2, 0, 0);
}

// All but the last block of 16 of a prompt that was seen before can be fetched.
constexpr std::uint32_t kFetched = kPrompt - 16;

TEST(Tiers, AFetchAheadTakesLatencyAndBandwidthAndThenComputes) {
  FleetConfig config = cold_engines(1);
  config.tiers[Tier::kDepot] = tier(20e9);
  config.tiers[Tier::kDepot].latency_s = 0.003;
  const FleetResult result = simulate_tiers(config, prompts(2, 100, 1000));
  EXPECT_EQ(ttft(result, 0), compute(config, 0));
  EXPECT_EQ(result.records[1].loaded_tokens, kFetched);
  const double load_s = 0.003 + kFetched * kTokenBytes / 20e9;
  EXPECT_NEAR(static_cast<double>(ttft(result, 1) - compute(config, kFetched)), load_s * kSecond, 2);
  const TierTraffic& traffic = result.traffic[static_cast<std::size_t>(Tier::kDepot)];
  EXPECT_EQ(traffic.read_bytes, kFetched * kTokenBytes);
  EXPECT_EQ(traffic.written_bytes, kPrompt * kTokenBytes) << "what is there already is not written again";
}

TEST(Tiers, LayersOverlapAsTheClosedFormSays) {
  // Half of the prompt is shared. The first to come computes and stores all of it, the second loads half.
  for (const double rate : {1.5e9, 2e9, 5e9, 20e9, 100e9}) {
    FleetConfig config = cold_engines(1);
    config.tiers.layerwise = true;
    config.tiers[Tier::kDepot] = tier(rate);
    const FleetResult result = simulate_tiers(config, prompts(2, 100, 50));
    const double store_s = kPrompt * kTokenBytes / rate;
    const double compute_s = static_cast<double>(compute(config, 0)) / kSecond;
    const LayerTimes first{0, compute_s / 64, store_s / 64};
    EXPECT_NEAR(static_cast<double>(ttft(result, 0)) / kSecond, layer_pipeline(64, first).seconds, 1e-9);
    const double half = 0.5 * kPrompt * kTokenBytes / rate;
    const double rest_s = static_cast<double>(compute(config, kPrompt / 2)) / kSecond;
    const Pipeline second = layer_pipeline(64, {half / 64, rest_s / 64, half / 64});
    const bool worth_it = result.records[1].loaded_tokens > 0;
    EXPECT_EQ(worth_it, half < compute_s) << rate;
    if (!worth_it) continue;
    EXPECT_NEAR(static_cast<double>(ttft(result, 1)) / kSecond, second.seconds, 1e-9);
    // science: max(load, store, compute), and the fill of one layer's other parts.
    EXPECT_NEAR(second.seconds - second.fill_s, std::max(half, rest_s), 1e-9);
  }
}

TEST(Tiers, InstancesShareTheDepotsBandwidth) {
  constexpr std::uint32_t kInstances = 8;
  for (const double total : {0.0, 40e9, 160e9}) {
    FleetConfig config = cold_engines(kInstances);
    config.tiers[Tier::kDepot] = tier(20e9);
    config.tiers[Tier::kDepot].write_bytes_per_s = 0;
    config.tiers[Tier::kDepot].total_read_per_s = total;
    trace::Trace trace = prompts(kInstances + 1, 0, 1000);
    for (std::uint32_t i = 1; i <= kInstances; ++i) trace.requests[i].arrival_s = 100;
    const FleetResult result = simulate_tiers(config, trace);
    double last = 0;
    for (std::size_t i = 1; i < result.records.size(); ++i) {
      last = std::max(last, static_cast<double>(ttft(result, i) - compute(config, kFetched)) / kSecond);
    }
    const double bytes = kFetched * kTokenBytes;
    const double expected = std::max(bytes / 20e9, total > 0 ? kInstances * bytes / total : 0);
    EXPECT_NEAR(last, expected, 1e-9) << total;
    config.tiers.contention = false;
    const FleetResult alone = simulate_tiers(config, trace);
    EXPECT_NEAR(static_cast<double>(ttft(alone, 8) - compute(config, kFetched)) / kSecond,
                std::max(bytes / 20e9, total > 0 ? bytes / total : 0), 1e-9);
  }
}

TEST(Tiers, AFetchTakesEachBlockFromTheFastestTierThatHasIt) {
  FleetConfig config = cold_engines(1);
  config.tiers[Tier::kDram] = tier(50e9);
  config.tiers[Tier::kDram].tokens_max = 3200;  // the head of what was seen
  config.tiers[Tier::kDepot] = tier(10e9);
  const FleetResult result = simulate_tiers(config, prompts(2, 100, 1000));
  const double from_dram = 3200 * kTokenBytes;
  const double from_depot = (kFetched - 3200) * kTokenBytes;
  EXPECT_EQ(result.traffic[static_cast<std::size_t>(Tier::kDram)].read_bytes, from_dram);
  EXPECT_EQ(result.traffic[static_cast<std::size_t>(Tier::kDepot)].read_bytes, from_depot);
  EXPECT_NEAR(static_cast<double>(ttft(result, 1) - compute(config, kFetched)) / kSecond,
              std::max(from_dram / 50e9, from_depot / 10e9), 1e-9);
  EXPECT_TRUE(result.loads_conserved);
}

TEST(Tiers, PrivateTiersAreNotSeenByOthers) {
  FleetConfig config = cold_engines(2);
  config.tiers[Tier::kFlash] = tier(50e9);
  const FleetResult result = simulate_tiers(config, prompts(4, 100, 1000));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(result.records[i].loaded_tokens, i < 2 ? 0U : kFetched) << i;
}

TEST(Tiers, WhatIsBeingWrittenCannotBeReadYet) {
  FleetConfig config = cold_engines(1);
  config.tiers[Tier::kDepot] = tier(100e9);
  config.tiers[Tier::kDepot].write_bytes_per_s = kPrompt * kTokenBytes / 10;  // a prompt takes ten seconds
  EXPECT_EQ(simulate_tiers(config, prompts(2, 9, 1000)).records[1].loaded_tokens, 0U);
  EXPECT_EQ(simulate_tiers(config, prompts(2, 11, 1000)).records[1].loaded_tokens, kFetched);
}

// Picoseconds of 64 bits end after 106 days.
TEST(Pipe, ATransferBehindTheClockEndsThereAndNotEarlier) {
  for (const double rate : {1e-300, 1.0, 1e3, 1e6}) {
    Pipe pipe(rate, true);
    Picoseconds last = 0;
    for (int i = 0; i < 100'000; ++i) {
      const Picoseconds end = pipe.take(i * kSecond, 1e9);
      ASSERT_GE(end, last) << rate << " " << i;
      last = end;
    }
    EXPECT_EQ(last, kTransferEndMax) << rate;
    EXPECT_EQ(pipe.end(kTransferEndMax + kSecond, 1), kTransferEndMax + kSecond) << "nothing ends before it begins";
    EXPECT_EQ(Pipe(rate, false).end(kTransferEndMax - 1, 1e9), kTransferEndMax);
  }
  EXPECT_EQ(layerwise_time(kTransferEndMax, kTransferEndMax, kTransferEndMax, 1), kTransferEndMax);
  EXPECT_EQ(layerwise_time(kTransferEndMax / 4, kTransferEndMax / 2, kTransferEndMax / 4, 1), kTransferEndMax);
}

TEST(Tiers, WhatIsNeverWrittenIsNeverRead) {
  for (const double total : {1.0, 1e3}) {
    for (const bool layerwise : {false, true}) {
      FleetConfig config = cold_engines(1);
      config.tiers.layerwise = layerwise;
      config.tiers[Tier::kDepot] = tier(100e9);
      config.tiers[Tier::kDepot].total_write_per_s = total;
      const FleetResult result = simulate_tiers(config, prompts(20, 10, layerwise ? 0 : 1000));
      // Passes do not wait for what is written behind them, and are as long as that where they write themselves.
      ASSERT_EQ(result.out_of_time, layerwise) << total;
      if (layerwise) continue;
      EXPECT_EQ(result.loaded_share, 0) << total;
      EXPECT_EQ(result.traffic[static_cast<std::size_t>(Tier::kDepot)].written_bytes, 20 * kPrompt * kTokenBytes);
    }
  }
}

TEST(Tiers, WhatTakesForeverIsNotFetched) {
  for (const bool layerwise : {false, true}) {
    FleetConfig config = cold_engines(1);
    config.tiers.layerwise = layerwise;
    config.tiers[Tier::kDepot] = tier(100e9);
    config.tiers[Tier::kDepot].total_read_per_s = 1;
    const FleetResult result = simulate_tiers(config, prompts(3, 10, 1000));
    EXPECT_FALSE(result.out_of_time);
    EXPECT_EQ(result.loaded_share, 0);
  }
}

TEST(Tiers, AWriteBudgetBoundsWhatIsWritten) {
  FleetConfig config = cold_engines(1);
  config.tiers[Tier::kFlash] = tier(100e9);
  config.tiers[Tier::kFlash].write_budget_per_s = 20e6;
  const FleetResult result = simulate_tiers(config, prompts(200, 1, 0));
  const TierTraffic& traffic = result.traffic[static_cast<std::size_t>(Tier::kFlash)];
  const double all = 200 * kPrompt * kTokenBytes;
  EXPECT_EQ(traffic.written_bytes + traffic.refused_bytes, all);
  // Full at first, then at its rate; less than a block is left over.
  EXPECT_NEAR(traffic.written_bytes, 20e6 * (kBudgetBurstSeconds + 199), 20e6 * 2);
  EXPECT_LE(traffic.written_bytes, 20e6 * (kBudgetBurstSeconds + 200));
}

TEST(Tiers, ChunksOfAPromptAreWrittenOnce) {
  for (const bool layerwise : {false, true}) {
    FleetConfig config = cold_engines(1);
    config.engine.chunk_tokens = 512;
    config.tiers.layerwise = layerwise;
    config.tiers[Tier::kDepot] = tier(1e9);  // slower than chunks come
    const FleetResult result = simulate_tiers(config, prompts(5, 100, 0));
    const TierTraffic& traffic = result.traffic[static_cast<std::size_t>(Tier::kDepot)];
    EXPECT_EQ(traffic.written_bytes, 5 * kPrompt * kTokenBytes);
    config.tiers[Tier::kDepot].write_budget_per_s = 5e6;
    const TierTraffic few = simulate_tiers(config, prompts(5, 100, 0)).traffic[static_cast<std::size_t>(Tier::kDepot)];
    EXPECT_GT(few.refused_bytes, 0);
    EXPECT_EQ(few.written_bytes + few.refused_bytes, 5 * kPrompt * kTokenBytes);
  }
}

TEST(Tiers, LessThanItsCapacityIsHeld) {
  FleetConfig config = cold_engines(1);
  config.tiers[Tier::kDram] = tier(100e9);
  config.tiers[Tier::kDram].tokens_max = 16'000;
  config.sample_s = 1;
  const FleetResult result = simulate_tiers(config, prompts(10, 5, 0));
  double most = 0;
  for (const FleetSample& s : result.samples) most = std::max(most, s.tier_tokens[0]);
  EXPECT_EQ(most, 16'000);
}

}  // namespace
}  // namespace kvd::sim
