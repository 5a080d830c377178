// The closed forms against the simulator under the forms' own assumptions: the time to the first token against a fleet
// of one engine that loads, computes and stores layer by layer, the time per token against clients in a closed loop.
// kvd_sim_test --gtest_filter='ClosedForms.*' prints the tables of docs/results/closed-forms.md.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include <gtest/gtest.h>

#include "model/closed_form.h"
#include "sim/fleet.h"
#include "sim/interval.h"
#include "sim/talk_loop.h"
#include "sim/testing/layer_pipeline.h"

namespace kvd::sim {
namespace {

constexpr std::uint32_t kLayers = 80;
constexpr std::uint32_t kPrompt = 2200;
constexpr double kOutputMean = 170;
constexpr double kErrorMax = 0.02;
constexpr double kFarApart = 100;  // seconds: the first prompt is stored when the second comes

// The talk's first case: Llama-3-70B in FP8 on two H100. Attention is causal, as engines compute it.
model::Replica talk_replica() {
  return {.flops_per_s = 2 * 1979e12 * 0.5,
          .memory_bytes_per_s = 2 * 3.35e12,
          .token_flops = 2 * 70.6e9,
          .attention = {{4.0 * kLayers * 8192, 0}},
          .mode = model::Attention::kCausal,
          .kv_token_bytes = 163'840,
          .tpot_one_s = 0.020};
}
double token_s(const model::Replica& r) { return r.token_flops / r.flops_per_s; }
double pair_s(const model::Replica& r) { return r.attention.front().pair_flops / r.flops_per_s; }

// One engine that finds nothing in its own cache, with blocks of one token; its passes cost what the form counts,
// without launches and without reading the weights.
FleetConfig one_engine(const model::Replica& replica, const model::StorePath& store) {
  FleetConfig config;
  config.engine = {100'000, 1, 1, 8192, 64};
  config.engine.prefix_caching = false;
  config.pass.token = model::picoseconds(token_s(replica));
  config.pass.pair = model::picoseconds(pair_s(replica));
  config.tiers.kv_bytes_per_token = replica.kv_token_bytes;
  config.tiers.layerwise = true;
  config.tiers.layers = kLayers;
  TierConfig& depot = config.tiers[Tier::kDepot];
  depot.on = true;
  depot.read_bytes_per_s = store.read_bytes_per_s;
  depot.write_bytes_per_s = store.write_bytes_per_s;
  config.keep_records = true;
  return config;
}

// Two prompts; the second begins with the first `shared` tokens of the first.
trace::Trace two_prompts(std::uint32_t shared) {
  trace::Trace trace;
  trace.block_tokens = 1;
  trace.timed = true;
  for (std::uint32_t i = 0; i < 2; ++i) {
    trace.requests.push_back({i * kFarApart, kPrompt, 1, i * kPrompt, kPrompt});
    for (std::uint32_t b = 0; b < kPrompt; ++b) trace.block_ids.push_back(b < shared ? b : i * kPrompt + b);
  }
  trace.distinct_blocks = 2 * kPrompt;
  return trace;
}

// The second prompt's time to its first token.
double simulated_ttft_s(const FleetConfig& config, std::uint32_t shared) {
  const trace::Trace trace = two_prompts(shared);
  const FleetResult result = run_fleet(config, *trace_source(trace, {}));
  EXPECT_TRUE(result.tokens_conserved && result.blocks_conserved && result.loads_conserved);
  EXPECT_LT(result.little_error, 0.01);
  const RequestRecord& second = result.records.at(1);
  EXPECT_EQ(second.loaded_tokens, std::min(shared, kPrompt - 1)) << "the last token is always computed";
  return static_cast<double>(second.first_token - second.arrival) / model::kPicosecondsPerSecond;
}

struct Speeds {
  double acceleration;  // e: a token is read so many times as fast as it is computed
  double writes;        // and written
};
// In the last, writes bind, which the form covers too.
constexpr Speeds kSpeeds[] = {{1, 2}, {3, 6}, {9, 18}, {18, 36}, {50, 100}, {9, 0.5}};

TEST(ClosedForms, TimeToFirstTokenFollowsTheFleet) {
  const model::Replica replica = talk_replica();
  const double compute_token_s = model::prefill(replica, {kPrompt, kOutputMean, 0}, {1, 1, 0, true}).compute_token_s;
  double worst = 0;
  std::printf("   e  writes  reuse  closed form ms  simulated ms  of which fill ms  rest against form %%\n");
  for (const Speeds& speeds : kSpeeds) {
    const double rate = replica.kv_token_bytes / compute_token_s;
    const model::StorePath store{rate * speeds.acceleration, rate * speeds.writes, 0, true};
    const FleetConfig config = one_engine(replica, store);
    for (std::uint32_t tenth = 0; tenth <= 10; ++tenth) {
      const double reuse = tenth / 10.0;
      const std::uint32_t shared = kPrompt * tenth / 10;
      const model::Prefill form = model::prefill(replica, {kPrompt, kOutputMean, reuse}, store);
      const double rest = kPrompt - shared;
      const Pipeline layers =
          layer_pipeline(kLayers, {shared * form.read_token_s / kLayers, rest * form.suffix_token_s / kLayers,
                                   rest * form.write_token_s / kLayers});
      const double simulated = simulated_ttft_s(config, shared);
      const double error = (simulated - layers.fill_s) / form.ttft_depot_s - 1;
      worst = std::max(worst, std::fabs(error));
      std::printf("%4.0f  %6.1f  %5.1f  %14.3f  %12.3f  %16.3f  %19.3f\n", speeds.acceleration, speeds.writes, reuse,
                  1e3 * form.ttft_depot_s, 1e3 * simulated, 1e3 * layers.fill_s, 100 * error);
      EXPECT_LE(std::fabs(error), kErrorMax) << "e " << speeds.acceleration << ", reuse " << reuse;
    }
  }
  std::printf("worst without the fill: %.3f %%\n", 100 * worst);
}

TEST(ClosedForms, TimePerTokenFollowsBusyClients) {
  constexpr std::uint64_t kSeeds = 30;
  const model::Replica replica = talk_replica();
  const double ttft = model::prefill(replica, {kPrompt, kOutputMean, 0}, {1, 1, 0, true}).ttft_vanilla_s;
  const model::Batching form = model::batching(replica, {kPrompt, kOutputMean, 0}, ttft);
  // TPOT(1) holds the reading of the request's own KV. Memory and passes have no bounds that are reached.
  const TalkEngine engine{.step_s = replica.tpot_one_s - form.context_s,
                          .token_s = token_s(replica),
                          .pair_s = pair_s(replica),
                          .context_token_s = replica.kv_token_bytes / replica.memory_bytes_per_s,
                          .blocks = 1'000'000,
                          .chunk_tokens = 1'000'000,
                          .constant_context = true};
  double worst = 0;
  std::printf("batch  closed form ms  simulated ms (95 %% over %d seeds)  against form %%\n", static_cast<int>(kSeeds));
  for (const std::uint32_t batch : {1U, 2U, 4U, 8U, 16U, 32U, 64U, 128U}) {
    const TalkTraffic traffic{.prompt_min = kPrompt,
                              .prompt_max = kPrompt,
                              .output_mean = kOutputMean,
                              .clients = batch,
                              .requests = std::max(400U, 40 * batch)};
    std::vector<double> tpot;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) tpot.push_back(talk_loop(engine, traffic, seed).tpot_s);
    const Interval simulated = interval(tpot);
    const double error = simulated.mean / form.tpot_s(batch) - 1;
    worst = std::max(worst, std::fabs(error));
    std::printf("%5u  %14.3f  %12.3f +- %.3f  %27.3f\n", batch, 1e3 * form.tpot_s(batch), 1e3 * simulated.mean,
                1e3 * simulated.half, 100 * error);
    EXPECT_LE(std::fabs(error), kErrorMax) << batch;
    EXPECT_LE(simulated.half, kErrorMax * simulated.mean) << "too few requests to tell, batch " << batch;
  }
  std::printf("worst: %.3f %%\n", 100 * worst);
}

}  // namespace
}  // namespace kvd::sim
