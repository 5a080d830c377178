// Tests of deployment classes: the closed forms with catalogue numbers, hits from capacity, sizing, cost, ranges.
#include "model/deployment.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::model {
namespace {

using testing::HasSubstr;

Question chat() {
  const Catalogue& catalogue = Catalogue::built_in();
  Question q;
  q.model = catalogue.model("llama-3-70b");
  q.device = catalogue.device("h100");
  q.gpus = 2;
  q.precision = "fp8";
  q.weight_bytes_per_param = 1;
  q.kv_bytes_per_element = 1;
  q.workload = {2200, 170, 0.9};
  return q;
}

Answer good(const Question& q) {
  auto worked = answer(q, Catalogue::built_in());
  EXPECT_TRUE(worked.has_value()) << worked.error();
  return worked.value_or(Answer{});
}

ClassAnswer at(const Answer& all, const char* name) {
  for (const ClassAnswer& c : all.classes) {
    if (c.name == name) return c;
  }
  ADD_FAILURE() << name;
  return all.vanilla;
}

TEST(Deployment, GivesTheCheckVectorFromTheCatalogue) {
  Question q = chat();
  q.attention = Attention::kFull;
  q.compute_efficiency = 0.5;
  q.io_bytes_per_s = 40e9;
  const Answer all = good(q);
  EXPECT_NEAR(all.talk.compute_token_s * 1e6, 74.263, 5e-4);
  EXPECT_NEAR(all.talk.acceleration, 18.131, 5e-4);
  EXPECT_NEAR(all.vanilla.prefill.ttft_depot_s, 0.163379, 1e-6);
}

TEST(Deployment, AnEfficiencyOfPrefillsLeavesDecodesTheirAllReduces) {
  Question q = chat();
  const Answer all = good(q);
  q.compute_efficiency = q.device->compute_efficiency;
  const Answer given = good(q);
  EXPECT_LT(given.vanilla.prefill.ttft_vanilla_s, all.vanilla.prefill.ttft_vanilla_s);
  EXPECT_EQ(given.replica.tpot_one_s, all.replica.tpot_one_s);
  EXPECT_EQ(given.vanilla.batching.request_s, all.vanilla.batching.request_s);
  EXPECT_NEAR(given.vanilla.batching.request_s, pass_reduces(q).token_s + q.device->seq_s, 1e-15);
  EXPECT_GT(pass_reduces(q).token_s, 0);
}

TEST(Deployment, EveryClassIsAtLeastAsGoodAsNothingWhereItReadsFastEnough) {
  const Answer all = good(chat());
  ASSERT_EQ(all.classes.size(), 6U);
  for (const ClassAnswer& c : all.classes) {
    EXPECT_GE(c.batch, all.vanilla.batch) << c.name;
    EXPECT_LE(c.ttft_range.low, c.ttft_range.mid) << c.name;
    EXPECT_GE(c.ttft_range.high, c.ttft_range.mid) << c.name;
    if (c.batch > 0) {
      EXPECT_LE(c.ttft_s, 0.4) << c.name;
      EXPECT_LE(c.tpot_s, 0.040) << c.name;
    }
  }
  EXPECT_GT(at(all, "S3").hit, at(all, "S0").hit);
}

TEST(Deployment, AStoreFindsWhatItKeepsLongEnough) {
  Question q = chat();
  q.requests_per_s = 5;
  const Answer all = good(q);
  const ClassAnswer s0 = at(all, "S0");
  // hit = a(1 - exp(-C/(f*idle))) with f = rate*(N(1-hit) + M)
  const double tokens = s0.sizing.capacity_bytes / all.kv_token_bytes;
  const double filled = 5 * (2200 * (1 - s0.hit) + 170);
  EXPECT_NEAR(s0.hit, 0.9 * (1 - std::exp(-tokens / (filled * 120))), 1e-9);
  Question longer = q;
  longer.idle_s = 1200;
  EXPECT_LT(at(good(longer), "S0").hit, s0.hit);
  EXPECT_NEAR(at(good(longer), "S3").hit, 0.9, 1e-3);
}

TEST(Deployment, WithoutAffinityAPrivateStoreSeesItsShareOnly) {
  Question q = chat();
  q.requests_per_s = 1;
  q.replicas = 4;
  q.affinity = false;
  const Answer all = good(q);
  EXPECT_NEAR(at(all, "S1b").hit, 0.225, 0.001);
  EXPECT_NEAR(at(all, "S3").hit, 0.9, 0.001);
}

TEST(Deployment, TheLastTokenIsAlwaysComputed) {
  Question q = chat();
  q.workload.reuse = 1;
  q.requests_per_s = 1;
  const Answer all = good(q);
  EXPECT_LE(at(all, "S3").hit, 1 - 1.0 / 2200);
  EXPECT_GT(at(all, "S0").prefill.ttft_depot_s, 0);
  EXPECT_TRUE(std::isfinite(at(all, "S0").prefill.speedup));
}

TEST(Deployment, TheTracesCurveReplacesTheModel) {
  Question q = chat();
  q.replicas = 2;
  q.affinity = false;
  q.requests_per_s = 1;
  q.hit_curve = [](double tokens, bool shared) { return tokens > 1e6 ? (shared ? 0.4 : 0.2) : 0.1; };
  const Answer all = good(q);
  EXPECT_DOUBLE_EQ(at(all, "S0").hit, 0.1);
  EXPECT_DOUBLE_EQ(at(all, "S1b").hit, 0.2);
  EXPECT_DOUBLE_EQ(at(all, "S3").hit, 0.4);
  EXPECT_NEAR(at(all, "S3").sizing.capacity_99_bytes, 1e6 * all.kv_token_bytes, 1e6);
}

TEST(Deployment, SizesDrivesByWhatBinds) {
  Question q = chat();
  q.requests_per_s = 10;
  const Answer all = good(q);
  const ClassAnswer s3 = at(all, "S3");
  const double written = 10 * (2200 * (1 - s3.hit) + 170) * 163'840;
  EXPECT_NEAR(s3.sizing.write_bytes_per_s, written, 1);
  EXPECT_NEAR(s3.sizing.read_bytes_per_s, 10 * 2200 * s3.hit * 163'840, 1);
  const double drive = 7.68e12 / 86'400;  // one drive write per day
  EXPECT_NEAR(s3.sizing.drives_per_gpu, written / drive / 2, 1e-6);
  EXPECT_NEAR(s3.sizing.write_budget_bytes_per_s, 4 * drive, 1);
  EXPECT_NEAR(s3.sizing.drive_life_years, 4 * drive * 5 / written, 1e-6);
  EXPECT_DOUBLE_EQ(at(all, "S2a").sizing.drive_life_years, 0);
}

TEST(Deployment, AServiceIsPaidByWhatIsKept) {
  Question q = chat();
  q.requests_per_s = 10;
  q.prices.gpu_hour = 2.5;
  q.prices.terabyte_month = {{"shared-fs", 30}};
  const Answer all = good(q);
  const ClassAnswer s2b = at(all, "S2b");
  const double hour = 2 * 2.5 + s2b.sizing.capacity_99_bytes * 1e-12 * 30 / 730;
  EXPECT_NEAR(s2b.cost_per_million, hour / (s2b.requests_per_s * 3600 * 2370) * 1e6, 1e-9);
  EXPECT_DOUBLE_EQ(s2b.sizing.capacity_bytes, 1e15);  // one for all, not for each GPU
}

TEST(Deployment, TheCpuEntryCoversTheMeasuredPrompts) {
  Question q = chat();
  q.model = Catalogue::built_in().model("smollm2-135m");
  q.device = Catalogue::built_in().device("cpu");
  q.gpus = 1;
  q.precision = "bf16";
  q.weight_bytes_per_param = q.kv_bytes_per_element = 2;
  q.sla = {};
  for (const auto& [tokens, seconds] : {std::pair{512, 0.20}, {2048, 1.05}, {4096, 3.2}, {7000, 7.2}}) {
    q.workload = {static_cast<double>(tokens), 8, 0};
    const Range ttft = good(q).vanilla.ttft_range;
    EXPECT_LE(ttft.low, seconds) << tokens;
    EXPECT_GE(ttft.high, seconds) << tokens;
  }
}

// It was once worked out at what each class found by itself, so that the same traffic needed 4 TB in one class and 0.7
// in another.
TEST(Deployment, WhatAShareOfTheHitsTakesIsTheSameInEveryClass) {
  Question q = chat();
  q.requests_per_s = 20;
  const auto bytes = [](double share) {
    return -std::log(1 - share) * 120 * 20 * (2200 * (1 - share * 0.9) + 170) * 163'840;
  };
  for (const ClassAnswer& c : good(q).classes) {
    EXPECT_NEAR(c.sizing.capacity_90_bytes / bytes(0.90), 1, 1e-9) << c.name;
    EXPECT_NEAR(c.sizing.capacity_99_bytes / bytes(0.99), 1, 1e-9) << c.name;
  }
}

TEST(Deployment, ADecodeStepReadsWhatWindowsAndStatesHold) {
  Question q = chat();
  q.weight_bytes_per_param = q.kv_bytes_per_element = 2;
  q.gpus = 8;
  for (const std::string& name : Catalogue::built_in().model_names()) {
    q.model = Catalogue::built_in().model(name);
    const Replica replica = replica_of(q);
    const double copies = replica.kv_token_bytes / q.model->kv_token_bytes(2);
    for (const double tokens : {100.0, 5000.0, 100'000.0}) {
      EXPECT_NEAR(replica.context_bytes(tokens) / (copies * q.model->kv_bytes(tokens, 2)), 1, 1e-12) << name;
    }
  }
  q.model = Catalogue::built_in().model("gemma-3-27b");
  const Replica gemma = replica_of(q);
  const Batching step = batching(gemma, {9600, 100, 0}, 1);
  EXPECT_NEAR(step.context_s * gemma.memory_bytes_per_s / (9600 * gemma.kv_token_bytes),
              (10 * 9600 + 52 * 1024.0) / (62 * 9600), 1e-12);
}

TEST(Deployment, ABatchReadsMoreExpertsThanOneRequest) {
  Question q = chat();
  q.model = Catalogue::built_in().model("deepseek-v3");
  q.device = Catalogue::built_in().device("h200");
  q.gpus = 8;
  const Replica replica = replica_of(q);
  const Batching step = batching(replica, q.workload, 0);
  const double all = 58.0 * 256 * 3 * 7168 * 2048;  // bytes of the routed experts of 58 layers, in FP8
  const double few = 1.0 / 32;                      // 8 of 256
  const double read = all * (1 - std::pow(1 - few, 64) - few) / replica.memory_bytes_per_s;
  EXPECT_NEAR(step.tpot_s(1), replica.tpot_one_s, 1e-12);
  EXPECT_NEAR(step.tpot_s(64), replica.tpot_one_s + 63 * step.decode_s() + read, 1e-9);
  EXPECT_GT(read, 10 * q.model->params_active() / replica.memory_bytes_per_s);
}

TEST(Deployment, EveryNumberThatDependsOnAnErrorHasARange) {
  Question q = chat();
  const double device = q.device->error;
  constexpr double kSheet = 0.3;  // of a bandwidth from a data sheet
  const Answer free = good(q);
  const ClassAnswer s3 = at(free, "S3");
  EXPECT_NEAR(s3.break_even_range.low / s3.break_even_bytes_per_s, 1 - device, 1e-9);
  EXPECT_NEAR(s3.break_even_range.high / s3.break_even_bytes_per_s, 1 + device, 1e-9);
  EXPECT_NEAR(s3.saturating_range.high / s3.saturating_bytes_per_s, 1 + device, 1e-9);
  EXPECT_NEAR(s3.links_range.low / s3.sizing.links_per_gpu, (1 - device) / (1 + kSheet), 1e-9);
  EXPECT_NEAR(s3.links_range.high / s3.sizing.links_per_gpu, (1 + device) / (1 - kSheet), 1e-9);
  EXPECT_LT(s3.batch_range.low, static_cast<double>(s3.batch));
  EXPECT_GT(s3.batch_range.high, static_cast<double>(s3.batch));
  const ClassAnswer s2b = at(free, "S2b");
  EXPECT_LT(s2b.shortest_prompt_range.low, static_cast<double>(s2b.shortest_prompt));
  EXPECT_GT(s2b.shortest_prompt_range.high, static_cast<double>(s2b.shortest_prompt));
  EXPECT_GT(s3.gpus_range.high, s3.gpus_needed);
  EXPECT_LT(free.tpot_one_range.low, free.replica.tpot_one_s);
  // Where S3's own rate is assumed, writes and drives follow what it may be; at a given rate they follow the hits.
  EXPECT_LT(s3.drive_life_range.low, s3.sizing.drive_life_years);
  EXPECT_GT(s3.drives_range.high, s3.sizing.drives_per_gpu);
  EXPECT_LT(free.rate_range.low, free.requests_per_s);
  q.requests_per_s = free.requests_per_s;
  const Answer given = good(q);
  EXPECT_DOUBLE_EQ(given.rate_range.low, given.rate_range.high);
  EXPECT_NEAR(at(given, "S3").drive_life_range.low / at(given, "S3").drive_life_range.high, 1, 0.01);
  for (const ClassAnswer& c : given.classes) {
    for (const Range& r : {c.ttft_range, c.speedup_range, c.tpot_range, c.batch_range, c.requests_range, c.gpus_range,
                           c.break_even_range, c.shortest_prompt_range, c.drive_life_range, c.drives_range}) {
      EXPECT_LE(r.low, r.mid) << c.name;
      EXPECT_LE(r.mid, r.high) << c.name;
    }
  }
}

TEST(Deployment, GpusForTheRateHaveTheHitsOfTheirOwnStores) {
  for (const bool affinity : {true, false}) {
    Question q = chat();
    q.affinity = affinity;
    q.requests_per_s = 20;
    for (const char* name : {"S0", "S1a", "S1b", "S3"}) {
      Question with = q;
      with.replicas = static_cast<std::uint32_t>(at(good(q), name).gpus_needed) / q.gpus;
      EXPECT_GE(with.replicas * at(good(with), name).requests_per_s, 20 * (1 - 1e-9)) << name;
      if (with.replicas == 1) continue;
      --with.replicas;
      EXPECT_LT(with.replicas * at(good(with), name).requests_per_s, 20) << name;
    }
  }
}

TEST(Deployment, WhatHasNoPriceHasNoCost) {
  Question q = chat();
  q.prices.gpu_hour = 2.5;
  q.prices.terabyte_month = {{"nvme-gen5", 20}};
  const Answer all = good(q);
  EXPECT_GT(all.vanilla.cost_per_million, 0);
  EXPECT_GT(at(all, "S0").cost_per_million, 0);  // what it keeps costs nothing more
  EXPECT_GT(at(all, "S3").cost_per_million, 0);
  EXPECT_EQ(at(all, "S3").unpriced, "");
  EXPECT_EQ(at(all, "S1a").cost_per_million, 0);
  EXPECT_EQ(at(all, "S1a").unpriced, "dram");
  q.prices.terabyte_month["dram"] = 0;
  EXPECT_GT(at(good(q), "S1a").cost_per_million, 0);  // free is a price
}

TEST(Deployment, CountsGpusForTheRate) {
  Question q = chat();
  const double one = at(good(q), "S3").requests_per_s;
  q.requests_per_s = 2.5 * one;
  EXPECT_DOUBLE_EQ(at(good(q), "S3").gpus_needed, 6);
}

TEST(Deployment, MemoryBoundsTheBatch) {
  Question q = chat();
  q.sla = {100, 100};
  const ClassAnswer s3 = at(good(q), "S3");
  EXPECT_TRUE(s3.memory_binds);
  EXPECT_EQ(s3.batch, static_cast<std::uint64_t>((160e9 * 0.9 - 70.6e9) / (2370 * 163'840.0)));
}

TEST(Deployment, AModelThatDoesNotFitIsRefusedWithTheArithmetic) {
  Question q = chat();
  q.gpus = 1;
  q.weight_bytes_per_param = 2;
  q.precision = "bf16";
  const auto refused = answer(q, Catalogue::built_in());
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error(), HasSubstr("70.6e9 parameters x 2 B = 141.2 GB"));
  EXPECT_THAT(refused.error(), HasSubstr("1 x 80.0 GB x 0.9 = 72.0 GB"));
  EXPECT_THAT(refused.error(), HasSubstr("Use at least 2 GPUs"));
}

TEST(Deployment, ARequestBeyondTheContextIsRefused) {
  Question q = chat();
  q.workload.prompt_tokens = 8100;
  const auto refused = answer(q, Catalogue::built_in());
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error(), HasSubstr("8100 + output 170 = 8270 tokens, but the context of llama-3-70b is 8192"));
}

TEST(Deployment, AModelWithoutKvIsRefused) {
  Transformer recurrent = *Catalogue::built_in().model("llama-3-8b");
  recurrent.groups[0].mixer = Mixer::kRecurrent;
  Question q = chat();
  q.model = &recurrent;
  const auto refused = answer(q, Catalogue::built_in());
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error(), HasSubstr("keeps no KV"));
}

TEST(Deployment, LatentAttentionIsKeptOnEveryRankButStoredOnce) {
  Question q = chat();
  q.model = Catalogue::built_in().model("deepseek-v3");
  q.device = Catalogue::built_in().device("h200");
  q.gpus = 8;
  const Answer all = good(q);
  EXPECT_DOUBLE_EQ(all.kv_token_bytes, 61.0 * 576);
  EXPECT_DOUBLE_EQ(all.replica.kv_token_bytes, 8 * 61.0 * 576);
}

}  // namespace
}  // namespace kvd::model
