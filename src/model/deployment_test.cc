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
