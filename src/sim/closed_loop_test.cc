// The closed forms against simulations under their own assumptions.
#include "sim/closed_loop.h"

#include <cmath>

#include <gtest/gtest.h>

#include "model/closed_form.h"

namespace kvd::sim {
namespace {

constexpr std::uint32_t kLayers = 80;

// The talk's first case: Llama-3-70B in FP8 on two H100, 2,200 + 170 tokens.
model::Replica talk_replica() {
  model::Replica replica;
  replica.flops_per_s = 2 * 1979e12 * 0.5;
  replica.memory_bytes_per_s = 2 * 3.35e12;
  replica.token_flops = 2 * 70.6e9;
  replica.attention = {{4.0 * 80 * 8192, 0}};
  replica.mode = model::Attention::kFull;
  replica.kv_token_bytes = 163840;
  replica.tpot_one_s = 0.020;
  return replica;
}

TEST(ClosedForms, TimeToFirstTokenFollowsTheLayerPipeline) {
  const model::Replica replica = talk_replica();
  double worst = 0;
  std::printf("   e  reuse  closed ms  simulated ms  of which fill ms\n");
  for (const double e : {1.0, 3.0, 9.0, 18.0, 50.0}) {
    for (int tenth = 0; tenth <= 10; ++tenth) {
      const double reuse = tenth / 10.0;
      model::StorePath store;
      const model::Prefill plain = model::prefill(replica, {2200, 170, 0}, {1e30, 1e30, 0, true});
      store.read_bytes_per_s = replica.kv_token_bytes * e / plain.compute_token_s;
      store.write_bytes_per_s = store.read_bytes_per_s * 2;
      const model::Prefill form = model::prefill(replica, {2200, 170, reuse}, store);
      const LayerTimes times{reuse * 2200 * form.read_token_s / kLayers,
                             (1 - reuse) * 2200 * form.suffix_token_s / kLayers,
                             (1 - reuse) * 2200 * form.write_token_s / kLayers};
      const Pipeline simulated = layer_pipeline(kLayers, times);
      const double error = (simulated.seconds - simulated.fill_s) / form.ttft_depot_s - 1;
      worst = std::max(worst, std::fabs(error));
      EXPECT_LE(simulated.fill_s, times.load_s + times.compute_s + times.store_s);
      if (tenth % 5 == 0) {
        std::printf("%4.0f  %5.1f  %9.3f  %12.3f  %16.3f\n", e, reuse, 1e3 * form.ttft_depot_s, 1e3 * simulated.seconds,
                    1e3 * simulated.fill_s);
      }
    }
  }
  std::printf("worst error without the fill: %.4f %%\n", 100 * worst);
  EXPECT_LE(worst, 0.02);
}

TEST(ClosedForms, TimePerTokenFollowsBusySlots) {
  const model::Replica replica = talk_replica();
  const double ttft = model::prefill(replica, {2200, 170, 0}, {1e30, 1e30, 0, true}).ttft_vanilla_s;
  const model::Batching form = model::batching(replica, {2200, 170, 0}, ttft);
  constexpr int kSeeds = 30;
  std::printf("batch  closed ms  simulated ms (95 %%)\n");
  for (const std::uint32_t batch : {1U, 2U, 4U, 8U, 16U, 32U, 64U, 128U}) {
    double mean = 0;
    double squares = 0;
    for (int seed = 1; seed <= kSeeds; ++seed) {
      const double tpot = busy_slots_tpot(batch, replica.tpot_one_s, form.context_s, ttft, 170, 20000,
                                          static_cast<std::uint64_t>(seed));
      mean += tpot / kSeeds;
      squares += tpot * tpot / kSeeds;
    }
    const double half = 2.045 * std::sqrt(std::max(0.0, squares - mean * mean) / (kSeeds - 1));
    std::printf("%5u  %9.3f  %12.3f +- %.3f\n", batch, 1e3 * form.tpot_s(batch), 1e3 * mean, 1e3 * half);
    EXPECT_NEAR(mean / form.tpot_s(batch), 1, 0.02);
  }
}

}  // namespace
}  // namespace kvd::sim
