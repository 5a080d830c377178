// Tests of the closed forms: two vectors worked out for the talk's settings, and the identities that hold between them.
#include "model/closed_form.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace kvd::model {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Llama-3-70B in FP8 on two H100 at half of their peak, attention as the talk counts it.
Replica llama_70b() {
  return {.flops_per_s = 2 * 1979e12 * 0.5,
          .memory_bytes_per_s = 2 * 3.35e12,
          .token_flops = 2 * 70.6e9,
          .attention = {{4.0 * 80 * 8192, 0}},
          .mode = Attention::kFull,
          .kv_token_bytes = 163'840,
          .tpot_one_s = 0.020};
}
Replica qwen_14b() {
  return {.flops_per_s = 989e12 * 0.5,
          .memory_bytes_per_s = 3.35e12,
          .token_flops = 2 * 14.8e9,
          .attention = {{4.0 * 40 * 5120, 0}},
          .mode = Attention::kFull,
          .kv_token_bytes = 163'840,
          .tpot_one_s = 0.012};
}
constexpr Workload kChat{2200, 170, 0.9};
constexpr Workload kDocument{9600, 100, 0.85};
constexpr StorePath path(double bytes_per_s) { return {bytes_per_s, kInfinity, 0, true}; }

// All columns of a vector, with as many digits as it is printed with.
struct Vector {
  double compute_us, read_us, acceleration, crossover, ttft_vanilla_ms, speedup, ttft_depot_ms, prefill_ms, context_ms;
  std::uint64_t batch_vanilla, batch_depot;
  double gain, limit;
};

void expect_vector(const Replica& replica, const Workload& workload, double bytes_per_s, const Vector& v) {
  const Prefill p = prefill(replica, workload, path(bytes_per_s));
  EXPECT_NEAR(p.compute_token_s * 1e6, v.compute_us, 5e-4);
  EXPECT_NEAR(p.read_token_s * 1e6, v.read_us, 5e-4);
  EXPECT_NEAR(p.acceleration, v.acceleration, v.acceleration < 10 ? 5e-5 : 5e-4);
  EXPECT_NEAR(p.crossover, v.crossover, 5e-6);
  EXPECT_NEAR(p.ttft_vanilla_s * 1e3, v.ttft_vanilla_ms, 5e-4);
  EXPECT_NEAR(p.speedup, v.speedup, 5e-5);
  EXPECT_NEAR(p.ttft_depot_s * 1e3, v.ttft_depot_ms, 5e-4);
  const Batching vanilla = batching(replica, workload, p.ttft_vanilla_s);
  const Batching depot = batching(replica, workload, p.ttft_depot_s);
  EXPECT_NEAR(vanilla.prefill_s * 1e3, v.prefill_ms, 5e-6);
  EXPECT_NEAR(vanilla.context_s * 1e3, v.context_ms, 5e-7);
  EXPECT_EQ(batch_of_talk(vanilla, 0.040), v.batch_vanilla);
  EXPECT_EQ(batch_of_talk(depot, 0.040), v.batch_depot);
  EXPECT_NEAR(batch_gain(vanilla, depot), v.gain, 5e-5);
  EXPECT_NEAR(batch_gain_limit(vanilla), v.limit, 5e-4);
}

TEST(ClosedForm, CheckVectorOfLlama70B) {
  expect_vector(llama_70b(), kChat, 40e9,
                {74.263, 4.096, 18.131, 0.94773, 163.379, 10, 16.338, 0.96106, 0.053798, 19, 133, 6.7700, 18.864});
}

TEST(ClosedForm, CheckVectorOfQwen14B) {
  expect_vector(qwen_14b(), kDocument, 20e9,
                {75.762, 8.192, 9.2483, 0.90242, 727.315, 6.6667, 109.097, 7.27315, 0.469512, 3, 17, 4.9617, 16.491});
}

TEST(ClosedForm, AtNineFoldAccelerationNineTenthsOfThePromptGiveTenTimes) {
  Workload workload = kChat;
  const double t = prefill(llama_70b(), workload, path(1e9)).compute_token_s;
  const StorePath store = path(9 * llama_70b().kv_token_bytes / t);
  workload.reuse = 0.9;
  const Prefill p = prefill(llama_70b(), workload, store);
  EXPECT_NEAR(p.acceleration, 9, 1e-9);
  EXPECT_NEAR(p.crossover, 0.9, 1e-9);
  EXPECT_NEAR(p.speedup, 10, 1e-9);
  for (const double a : {0.1, 0.5, 0.89}) {
    workload.reuse = a;
    EXPECT_NEAR(prefill(llama_70b(), workload, store).speedup, 1 / (1 - a), 1e-9);
    EXPECT_EQ(prefill(llama_70b(), workload, store).bound, Bound::kCompute);
  }
  for (const double a : {0.91, 0.95, 1.0}) {
    workload.reuse = a;
    EXPECT_NEAR(prefill(llama_70b(), workload, store).speedup, 9 / a, 1e-9);
    EXPECT_EQ(prefill(llama_70b(), workload, store).bound, Bound::kRead);
  }
}

TEST(ClosedForm, CausalAttentionHalvesThePairsAndLooksBackAtThePrefix) {
  Replica replica = llama_70b();
  replica.mode = Attention::kCausal;
  const Prefill p = prefill(replica, kChat, path(40e9));
  const double f = replica.flops_per_s;
  EXPECT_NEAR(p.compute_token_s, (2 * 70.6e9 + 2.0 * 80 * 8192 * 2200) / f, 1e-15);
  EXPECT_NEAR(p.suffix_token_s, (2 * 70.6e9 + 2.0 * 80 * 8192 * 2200 * 1.9) / f, 1e-15);
  Workload at = kChat;
  at.reuse = p.crossover;
  const Prefill balanced = prefill(replica, at, path(40e9));
  EXPECT_NEAR(at.reuse * balanced.read_token_s, (1 - at.reuse) * balanced.suffix_token_s, 1e-12);
}

TEST(ClosedForm, AWindowBoundsWhatATokenAttendsTo) {
  Replica replica = llama_70b();
  replica.mode = Attention::kCausal;
  replica.token_flops = 0;
  replica.attention = {{1.0, 100}};
  replica.flops_per_s = 1;
  EXPECT_NEAR(prefill(replica, {80, 1, 0}, path(1)).ttft_vanilla_s, 3200, 1e-9);
  EXPECT_NEAR(prefill(replica, {300, 1, 0}, path(1)).ttft_vanilla_s, 5000 + 200 * 100, 1e-9);
  EXPECT_NEAR(prefill(replica, {300, 1, 0.5}, path(1)).suffix_token_s, 100, 1e-9);
  replica.mode = Attention::kFull;
  EXPECT_NEAR(prefill(replica, {300, 1, 0}, path(1)).ttft_vanilla_s, 300 * 100, 1e-9);
}

TEST(ClosedForm, SlowWritesBind) {
  StorePath store = path(40e9);
  store.write_bytes_per_s = 1e9;  // 164 us a token against 74
  const Prefill p = prefill(llama_70b(), kChat, store);
  EXPECT_EQ(p.bound, Bound::kWrite);
  EXPECT_NEAR(p.ttft_depot_s, 220 * 163'840 / 1e9, 1e-12);
}

TEST(ClosedForm, WithoutOverlapTimesAdd) {
  StorePath store = path(40e9);
  store.latency_s = 0.002;
  store.overlapped = false;
  const Prefill p = prefill(llama_70b(), kChat, store);
  EXPECT_NEAR(p.ttft_depot_s, 0.002 + 1980 * p.read_token_s + 220 * p.suffix_token_s, 1e-12);
}

TEST(ClosedForm, TheLargestBatchIsInsideTheSlaAndOneMoreIsNot) {
  const Prefill p = prefill(llama_70b(), kChat, path(40e9));
  const Batching vanilla = batching(llama_70b(), kChat, p.ttft_vanilla_s);
  EXPECT_EQ(batch_within(vanilla, {0, 0.040}), 20U);  // the talk's 19 and one more
  for (const Sla sla : {Sla{0.4, 0.040}, Sla{0.2, 0.1}, Sla{0.17, 0}}) {
    const std::uint64_t batch = batch_within(vanilla, sla);
    const auto inside = [&](double b) {
      return vanilla.ttft_s(b) <= sla.ttft_s && (sla.tpot_s <= 0 || vanilla.tpot_s(b) <= sla.tpot_s);
    };
    EXPECT_TRUE(inside(static_cast<double>(batch)));
    EXPECT_FALSE(inside(static_cast<double>(batch + 1)));
  }
  EXPECT_EQ(batch_within(vanilla, {0.1, 0.040}), 0U);
  EXPECT_EQ(batch_within(vanilla, {}), kBatchMax);
  EXPECT_EQ(batch_of_talk(vanilla, 0.010), 0U);
}

TEST(ClosedForm, BreakEvenAndSaturationAreWhereTheyShouldBe) {
  const Replica replica = llama_70b();
  const double even = break_even_bytes_per_s(replica, kChat);
  EXPECT_NEAR(prefill(replica, kChat, path(even)).speedup, 1, 1e-9);
  const double enough = saturating_bytes_per_s(replica, kChat);
  const double at = prefill(replica, kChat, path(enough)).ttft_depot_s;
  EXPECT_NEAR(at, prefill(replica, kChat, path(100 * enough)).ttft_depot_s, 1e-12);
  EXPECT_GT(prefill(replica, kChat, path(0.99 * enough)).ttft_depot_s, at * 1.005);
  EXPECT_EQ(saturating_bytes_per_s(replica, {2200, 170, 1.0}), kInfinity);
}

TEST(ClosedForm, TheShortestPromptPaysForItsLatency) {
  StorePath store = path(40e9);
  EXPECT_EQ(shortest_prompt(llama_70b(), kChat, store, 128'000), 1U);
  store.latency_s = 0.010;
  const std::uint64_t tokens = shortest_prompt(llama_70b(), kChat, store, 128'000);
  const auto gain = [&](std::uint64_t n) {
    const Workload workload{static_cast<double>(n), 170, 0.9};
    return prefill(llama_70b(), workload, store).speedup;
  };
  EXPECT_GT(gain(tokens), 1);
  EXPECT_LE(gain(tokens - 1), 1);
  EXPECT_EQ(shortest_prompt(llama_70b(), kChat, path(1e8), 128'000), 0U);  // slower than computing at any length
}

TEST(ClosedForm, TheAnswerMayBeCountedToo) {
  const Batching growing = batching(llama_70b(), kChat, 0.1, true);
  EXPECT_NEAR(growing.context_s, (2200 + 85) * 163'840 / 6.7e12, 1e-15);
}

TEST(ClosedForm, WindowsHoldNoMoreThanTheirLengthAndStatesAreOfOneSize) {
  Replica replica = llama_70b();
  replica.windows = {{100'000, 1000}, {20'000, 3000}};
  replica.state_bytes = 5;
  EXPECT_DOUBLE_EQ(replica.context_bytes(500), 500 * 163'840.0 + 5);
  EXPECT_DOUBLE_EQ(replica.context_bytes(4000), 4000 * 43'840.0 + 1000 * 100'000.0 + 3000 * 20'000.0 + 5);
  EXPECT_NEAR(batching(replica, kChat, 0.1).context_s, replica.context_bytes(2200) / 6.7e12, 1e-15);
}

TEST(ClosedForm, ABatchMeetsMoreExpertsThanOneRequestAndNeverMoreThanThereAre) {
  Replica replica = llama_70b();
  replica.experts = {{67e9, 0.25}};  // 10 ms to read all of them
  const Batching sparse = batching(replica, kChat, 0.1);
  const Batching dense = batching(llama_70b(), kChat, 0.1);
  EXPECT_NEAR(sparse.tpot_s(1), dense.tpot_s(1), 1e-15);
  EXPECT_NEAR(sparse.tpot_s(2) - dense.tpot_s(2), 0.010 * (1 - 0.25 - 0.5625), 1e-12);
  EXPECT_NEAR(sparse.tpot_s(500) - dense.tpot_s(500), 0.0075, 1e-9);
  EXPECT_NEAR(split_tpot_s(sparse, 2) - split_tpot_s(dense, 2), 0.010 * (1 - 0.25 - 0.5625), 1e-12);
}

TEST(ClosedForm, ASplitKeepsBothSidesBusy) {
  const Batching b = batching(llama_70b(), kChat, 0.163);
  EXPECT_NEAR(split_tpot_s(b, 11), 0.020 + 10 * b.context_s, 1e-15);
  const double decode_rate = 11 / (170 * split_tpot_s(b, 11));
  const double prefill_rate = 1 / 0.163;
  const double replicas = 1 / decode_rate + 1 / prefill_rate;  // per request/s
  EXPECT_NEAR(split_requests_per_s(b, 11), 1 / replicas, 1e-12);
}

}  // namespace
}  // namespace kvd::model
