// Tests of the fit to measured passes, and of reading them.
#include "model/pass_fit.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvd::model {
namespace {

constexpr PassFit kTrue{0.02, 3e-4, 4e-8, 1e-3, 2e-7};

std::vector<MeasuredPass> measured(std::uint64_t seed, double noise) {
  Random random(seed);
  std::vector<MeasuredPass> passes;
  for (int i = 0; i < 200; ++i) {
    MeasuredPass p;
    if (i % 2 == 0) {
      p.prefill_tokens = 1 + static_cast<double>(random.below(2000));
      p.pairs = p.prefill_tokens * (p.prefill_tokens / 2 + static_cast<double>(random.below(4000)));
    }
    p.decodes = static_cast<double>(random.below(32));
    p.context_tokens = p.decodes * static_cast<double>(random.below(3000));
    p.seconds = kTrue.seconds(p) * (1 + noise * (random.uniform() - 0.5));
    passes.push_back(p);
  }
  return passes;
}

TEST(PassFit, FindsTheConstantsOfNoisyPasses) {
  const PassFit fit = fit_passes(measured(1, 0.1));
  double worst = 0;
  for (const MeasuredPass& p : measured(2, 0)) worst = std::max(worst, std::abs(fit.seconds(p) / p.seconds - 1));
  EXPECT_LT(worst, 0.05);
}

// The same passes as a process runs them that is `fit`.
std::vector<MeasuredPass> run_by(const PassFit& fit, std::uint64_t seed, double noise) {
  std::vector<MeasuredPass> passes = measured(seed, 0);
  const std::vector<double> seconds = predict_passes(fit, passes);
  Random random(seed + 1000);
  for (std::size_t i = 0; i < passes.size(); ++i) {
    passes[i].seconds = seconds[i] * (1 + noise * (random.uniform() - 0.5));
  }
  return passes;
}

TEST(PassFit, KeepsToOneSlopeAndNoFirstPassTermWhereThereIsNone) {
  const PassFit fit = fit_passes(measured(1, 0.1));
  EXPECT_TRUE(std::isinf(fit.knee_decodes));
  EXPECT_EQ(fit.first_max_s, 0);
}

TEST(PassFit, FindsWhatTheFirstPassesOfAProcessPay) {
  PassFit fresh = kTrue;
  fresh.first_share = 0.5;
  fresh.first_max_s = 0.4;
  const PassFit fit = fit_passes(run_by(fresh, 1, 0.04));
  EXPECT_NEAR(fit.first_max_s / fresh.first_max_s, 1, 0.1);
  EXPECT_NEAR(fit.first_share / fresh.first_share, 1, 0.1);
  const std::vector<MeasuredPass> other = run_by(fresh, 2, 0);
  const std::vector<double> predicted = predict_passes(fit, other);
  for (std::size_t i = 0; i < other.size(); ++i) EXPECT_NEAR(predicted[i] / other[i].seconds, 1, 0.05) << i;
}

TEST(PassFit, FindsTheKneeOfTheDecodes) {
  PassFit bent = kTrue;
  bent.knee_decodes = 12;
  bent.seq_beyond_s = 5e-3;
  const PassFit fit = fit_passes(run_by(bent, 1, 0.04));
  EXPECT_NEAR(fit.knee_decodes, 12, 2);
  for (const double decodes : {4.0, 12.0, 20.0, 31.0}) {
    EXPECT_NEAR(fit.decode_s(decodes) / bent.decode_s(decodes), 1, 0.1) << decodes;
  }
}

TEST(PassFit, PassesWhoseTermsAddUpGiveALinearFit) {
  constexpr LinearFit kAdded{0.02, 3e-4, 4e-8, 1e-3, 2e-7};
  std::vector<MeasuredPass> passes = measured(1, 0);
  for (MeasuredPass& p : passes) p.seconds = kAdded.seconds(p);
  const LinearFit fit = fit_linear(passes, fit_passes(passes));
  EXPECT_NEAR(fit.base_s / kAdded.base_s, 1, 1e-3);
  EXPECT_NEAR(fit.token_s / kAdded.token_s, 1, 1e-3);
  EXPECT_NEAR(fit.pair_s / kAdded.pair_s, 1, 1e-3);
  EXPECT_NEAR(fit.seq_s / kAdded.seq_s, 1, 1e-3);
  EXPECT_NEAR(fit.context_s / kAdded.context_s, 1, 1e-3);
}

TEST(PassFit, ALinearFitIsThatOfAWarmProcess) {
  PassFit fresh = kTrue;
  fresh.first_share = 0.5;
  fresh.first_max_s = 0.4;
  const std::vector<MeasuredPass> cold = run_by(fresh, 1, 0);
  const std::vector<MeasuredPass> warm = measured(1, 0);
  const LinearFit fit = fit_linear(cold, fit_passes(cold));
  const LinearFit same = fit_linear(warm, fit_passes(warm));
  EXPECT_NEAR(fit.token_s / same.token_s, 1, 0.01);
  EXPECT_NEAR(fit.base_s / same.base_s, 1, 0.01);
}

TEST(PassFit, LeftOutPassesAreNotSeen) {
  std::vector<MeasuredPass> passes = measured(1, 0.1);
  const PassFit fit = fit_passes(passes, 2);
  for (std::size_t i = 1; i < passes.size(); i += 2) passes[i].seconds *= 3;
  const PassFit same = fit_passes(passes, 2);
  EXPECT_EQ(fit.token_s, same.token_s);
  EXPECT_EQ(fit.seq_s, same.seq_s);
  EXPECT_NEAR(fit.token_s / kTrue.token_s, 1, 0.1);
}

TEST(PassFit, ReadsColumnsInAnyOrder) {
  std::string text = "pairs,seconds,decodes,note,context_tokens,prefill_tokens\n";
  for (int i = 0; i < 20; ++i) text += "10,0.5,2,x,300,4\n";
  const auto passes = read_passes(text, "passes.csv");
  ASSERT_TRUE(passes);
  EXPECT_EQ(passes->size(), 20U);
  EXPECT_EQ(passes->front().pairs, 10);
  EXPECT_EQ(passes->front().prefill_tokens, 4);
}

TEST(PassFit, SaysWhatIsWrongWithTheLine) {
  const std::string header = "seconds,prefill_tokens,pairs,decodes,context_tokens\n";
  EXPECT_EQ(read_passes("", "f").error().str(), "f: the file is empty; a header line and a line per pass are expected");
  EXPECT_NE(read_passes("seconds,pairs\n", "f").error().str().find("prefill_tokens is missing"), std::string::npos);
  for (const char* const bad : {"0,1,1,1,1\n", "-1,1,1,1,1\n", "nan,1,1,1,1\n", "1,1,1,1\n", "1,1,1,x,1\n"}) {
    EXPECT_EQ(read_passes(header + bad, "f").error().line, 2U) << bad;
  }
  EXPECT_NE(read_passes(header + "1,1,1,1,1\n", "f").error().str().find("20 passes"), std::string::npos);
}

}  // namespace
}  // namespace kvd::model
