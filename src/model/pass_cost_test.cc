// Tests of the learnt cost of passes.
#include "model/pass_cost.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvd::model {
namespace {

constexpr PassCoefficients kTrueCost{0.03, 0.0011, 3.0e-8};
constexpr PassCoefficients kWrongPrior{0.001, 0.0001, 1e-9};

TEST(ChunkWork, CountsPairsOfACausalChunk) {
  EXPECT_EQ(chunk_work(3, 0).pairs, 6);    // 1 + 2 + 3
  EXPECT_EQ(chunk_work(2, 10).pairs, 23);  // 11 + 12
}

TEST(PassCost, BelievesThePriorUntilMeasured) {
  const PassCost cost(kTrueCost);
  const PassWork work = chunk_work(4096, 0);
  EXPECT_DOUBLE_EQ(cost.seconds(work), kTrueCost.seconds(work));
}

TEST(PassCost, LearnsAllThreeTermsFromNoisyPasses) {
  PassCost cost(kWrongPrior);
  Random random(7);
  for (int i = 0; i < 300; ++i) {
    const double tokens = i % 3 == 0 ? 1 : static_cast<double>(64 + random.next() % 4000);
    const PassWork work = chunk_work(tokens, static_cast<double>(random.next() % 7000));
    const double noise = 0.95 + 0.1 * static_cast<double>(random.next() % 1000) / 1000;
    cost.observe(work, kTrueCost.seconds(work) * noise);
  }
  for (const PassWork work : {chunk_work(1, 7000), chunk_work(512, 0), chunk_work(6912, 0), chunk_work(88, 6912)}) {
    EXPECT_NEAR(cost.seconds(work) / kTrueCost.seconds(work), 1.0, 0.15);
  }
}

TEST(PassCost, OneMeasurementOutweighsAWrongPrior) {
  PassCost cost(kWrongPrior);
  const PassWork work = chunk_work(2048, 0);
  cost.observe(work, kTrueCost.seconds(work));
  EXPECT_NEAR(cost.seconds(work) / kTrueCost.seconds(work), 1.0, 0.3);
}

TEST(PassCost, AnHourOfDecodingDoesNotForgetThePrompt) {
  PassCost cost(kWrongPrior);
  const PassWork prompt = chunk_work(4096, 0);
  for (int i = 0; i < 10; ++i) cost.observe(prompt, kTrueCost.seconds(prompt));
  const PassWork decode = chunk_work(1, 2000);
  for (int i = 0; i < 100'000; ++i) cost.observe(decode, kTrueCost.seconds(decode));
  EXPECT_NEAR(cost.seconds(prompt) / kTrueCost.seconds(prompt), 1.0, 0.15);
}

// What a pass is expected to take, over what it took at first, once 20 of them have taken `times` as long.
double learnt_after_slowing(double times) {
  PassCost cost(kTrueCost);
  const PassWork work = chunk_work(1024, 0);
  for (int i = 0; i < 50; ++i) cost.observe(work, kTrueCost.seconds(work));
  for (int i = 0; i < 20; ++i) cost.observe(work, times * kTrueCost.seconds(work));
  return cost.seconds(work) / kTrueCost.seconds(work);
}

TEST(PassCost, FollowsAMachineThatBecomesSlower) { EXPECT_NEAR(learnt_after_slowing(2), 2.0, 0.2); }

TEST(PassCost, FollowsAMachineThatBecomesMuchSlowerInAFewPasses) { EXPECT_NEAR(learnt_after_slowing(10), 10.0, 1.5); }

TEST(PassCost, OneDisturbedPassDoesNotMakeLoadsWorthless) {
  PassCost cost(kTrueCost);
  const auto saved = [&] { return cost.prompt_seconds(130, 0, 0) - cost.prompt_seconds(2, 128, 0); };
  const double right = saved();
  for (int i = 0; i < 5; ++i) cost.observe(chunk_work(130, 0), kTrueCost.seconds(chunk_work(130, 0)));
  cost.observe(chunk_work(2, 128), kTrueCost.seconds(chunk_work(130, 0)));  // the only one of its size
  EXPECT_GT(saved(), 0.5 * right);
}

TEST(PassCost, NoTermIsEverNegative) {
  PassCost cost(kWrongPrior);
  cost.observe(chunk_work(1, 100), 0.05);  // a large pass that is cheaper than a small one
  cost.observe(chunk_work(4000, 0), 0.04);
  const auto& c = cost.coefficients();
  EXPECT_GE(c.fixed_s, 0);
  EXPECT_GE(c.token_s, 0);
  EXPECT_GE(c.pair_s, 0);
  EXPECT_GT(cost.seconds(chunk_work(1, 1)), 0);
}

TEST(PassCost, IgnoresNonsense) {
  PassCost cost(kTrueCost);
  cost.observe({0, 0}, 1);
  cost.observe({5, 5}, -1);
  EXPECT_EQ(cost.observations(), 0u);
}

TEST(PassCost, AChunkedPromptPaysTheFixedPartForEachChunk) {
  const PassCost cost(kTrueCost);
  EXPECT_NEAR(cost.prompt_seconds(4096, 0, 2048) - cost.prompt_seconds(4096, 0, 0), kTrueCost.fixed_s, 1e-9);
  EXPECT_EQ(cost.prompt_seconds(0, 100, 10), 0);
}

}  // namespace
}  // namespace kvd::model
