// Tests of the study: the fit's errors on points left out, exact scaling, what each figure must hold, and its engine.
#include "sim/study.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "sim/study_text.h"

namespace kvd::sim {
namespace {

model::StudyTables tables() { return read_tables(built_in_calibration(), "calibration.json").value(); }
StudyInputs inputs() { return read_inputs(built_in_workloads(), "workloads.json").value(); }

double percentile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

TEST(StudyFit, PredictsPointsThatAreLeftOut) {
  std::vector<double> inner;
  std::vector<double> ends;
  for (const LeftOut& p : leave_one_out(tables())) {
    (p.end ? ends : inner).push_back(std::fabs(p.error()));
    if (std::fabs(p.error()) > 0.1) {
      std::printf("  %s %s: %+.1f %%%s\n", p.table.c_str(), p.point.c_str(), 100 * p.error(), p.end ? " (end)" : "");
    }
  }
  std::printf("inner: %zu points, median %.2f %%, 95th percentile %.2f %%; ends: %zu, %.2f %%, %.2f %%\n", inner.size(),
              100 * percentile(inner, 0.5), 100 * percentile(inner, 0.95), ends.size(), 100 * percentile(ends, 0.5),
              100 * percentile(ends, 0.95));
  EXPECT_LE(percentile(inner, 0.5), 0.05);
  EXPECT_LE(percentile(inner, 0.95), 0.15);
}

// All numbers of a predicted figure, in order.
void numbers(const nlohmann::ordered_json& value, std::vector<double>& out) {
  if (value.is_number()) out.push_back(value.get<double>());
  for (const auto& child : value) {
    if (value.is_structured()) numbers(child, out);
  }
}

// Every predicted time follows the calibration: twice the times, exactly half the tokens per second.
TEST(Study, ScalesExactlyWithTheCalibration) {
  model::StudyTables slow = tables();
  slow.scale(2);
  const model::StudyFit fit = model::fit_study(tables());
  const model::StudyFit twice = model::fit_study(slow);
  const StudyInputs in = inputs();
  for (const char* const figure : {"3a", "3b", "3c", "4a", "4b", "4c", "4c_fixed"}) {
    const auto rates = study_figure(figure, fit, in).value();
    const auto halves = study_figure(figure, twice, in).value();
    const std::function<void(const nlohmann::ordered_json&, const nlohmann::ordered_json&)> compare =
        [&](const auto& a, const auto& b) {
          for (const auto& [key, value] : a.items()) {
            const auto& other = a.is_object() ? b.at(key) : b.at(std::stoul(key));
            if (value.is_structured()) {
              compare(value, other);
            } else if (value.is_number_float()) {
              EXPECT_EQ(value.template get<double>(), 2 * other.template get<double>()) << figure << " " << key;
            } else {
              EXPECT_EQ(value, other) << figure << " " << key;  // passes, and null
            }
          }
        };
    compare(rates, halves);
  }
  for (const char* const figure : {"8a", "8b", "9", "10a", "10b"}) {
    std::vector<double> once;
    std::vector<double> doubled;
    numbers(study_figure(figure, fit, in).value(), once);
    numbers(study_figure(figure, twice, in).value(), doubled);
    ASSERT_EQ(once.size(), doubled.size());
    for (std::size_t i = 0; i < once.size(); ++i) EXPECT_EQ(2 * once[i], doubled[i]) << figure << " " << i;
  }
}

TEST(Study, RunsEveryRequestToItsEnd) {
  const model::StudyFit fit = model::fit_study(tables());
  const StudyInputs in = inputs();
  const auto fig4a = study_figure("4a", fit, in).value();
  EXPECT_EQ(fig4a.at("none").at("passes"), 1);
  EXPECT_EQ(fig4a.at("512").at("passes"), 16);
  EXPECT_EQ(fig4a.at("32").at("passes"), 256);
  sched::Config config = sched::vllm_0_4_2(2928, 16384);
  config.host_blocks = study_host_blocks(model::kYarn);
  for (const sched::Eviction eviction : {sched::Eviction::kRecompute, sched::Eviction::kSwap}) {
    config.eviction = eviction;
    const auto& zipf = in.requests.at("zipf_128_8192_ratio_0.5");
    const EngineRun run = run_engine(config, zipf, study_costs(fit, model::kYarn, true, 16));
    EXPECT_EQ(run.rejected, 0U);
    EXPECT_EQ(run.tokens, 113193U + 226405U);
    EXPECT_EQ(run.passes.back().host_blocks, 0U);
    EXPECT_LT(run.little_error, 1e-9);
    double seconds = run.copies_alone_s;
    for (const PassRecord& pass : run.passes) seconds += pass.seconds;
    EXPECT_NEAR(seconds, run.seconds, 1e-9 * run.seconds);
  }
}

TEST(Study, InputsThatARunLeavesOutAreNoFigure) {
  const model::StudyFit fit = model::fit_study(tables());
  StudyInputs in = inputs();
  in.requests.at("w3")[2] = {5000, 10};
  const char* const fault = "1 of 20 requests cannot end in 3077 blocks of 16 tokens, or in passes of at most 4096";
  const auto expect_fault = [&](const StudyResult& result) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error(), fault);
  };
  expect_fault(study_figure("4b", fit, in));
  expect_fault(study_figure("5", fit, in));
  expect_fault(study_prompt_passes(fit, in));
  EXPECT_TRUE(study_figure("9", fit, in).has_value()) << "has none of w3";
  in = inputs();
  in.requests.at(kListOf10)[0] = {12'000, 500};
  EXPECT_FALSE(study_figure("10a", fit, in).has_value());
  EXPECT_FALSE(study_evictions(fit, in).has_value());
}

// The paper explains overheads with the number of evictions (bench/study_sentences.py compares them).
TEST(Study, CountsEvictions) {
  const auto counts = study_evictions(model::fit_study(tables()), inputs()).value();
  EXPECT_EQ(counts.at("fig9").at("1K").at("swap").at(0), 0) << "32 short requests fit";
  const auto& by_model = counts.at("fig10b");
  for (const char* const how : {"recompute", "swap"}) {
    const auto of = [&](const char* name) { return by_model.at(name).at(how).get<int>(); };
    EXPECT_GT(of("Llama-3.1-8B"), 0) << how;
    EXPECT_GT(of("OPT-13B"), of("Yarn-Llama-2-7B")) << how;
    EXPECT_GT(of("Yarn-Llama-2-7B"), of("Llama-3.1-8B")) << how;
  }
}

// Figure 6 as far as passes go: one prefill of four prompts, then decodes that read all that was written.
TEST(Study, FollowsWritesAndReadsOfFourRequests) {
  const StudyInputs in = inputs();
  const auto accesses = study_accesses(model::fit_study(tables()), in).value();
  for (const char* const workload : {"w1", "w2", "w3"}) {
    const auto& passes = accesses.at(workload);
    ASSERT_EQ(passes.size(), 5U);
    std::uint64_t prompts = 0;
    for (std::size_t i = 0; i < 4; ++i) prompts += in.requests.at(workload)[i].prompt;
    EXPECT_EQ(passes[0].at("prompt_tokens"), prompts) << workload;
    std::uint64_t written = 0;
    for (std::size_t i = 0; i < passes.size(); ++i) {
      EXPECT_EQ(passes[i].at("read_tokens"), written) << workload << " " << i;
      EXPECT_EQ(passes[i].at("written_tokens"), i == 0 ? prompts : 4) << workload << " " << i;
      EXPECT_EQ(passes[i].at("prompt_tokens"), i == 0 ? prompts : 0) << workload << " " << i;
      written += passes[i].at("written_tokens").get<std::uint64_t>();
    }
  }
}

TEST(Study, ListsThePassesThatHoldPrompts) {
  const StudyInputs in = inputs();
  const auto all = study_prompt_passes(model::fit_study(tables()), in).value();
  for (const auto& [workload, strategies] : all.items()) {
    std::uint64_t prompts = 0;
    for (const Lengths& r : in.requests.at(workload)) prompts += r.prompt;
    for (const auto& [strategy, passes] : strategies.items()) {
      std::uint64_t listed = 0;
      for (const auto& pass : passes) {
        EXPECT_GT(pass[0].get<double>(), 0);
        EXPECT_LE(pass[1].get<int>(), strategy == "512" ? 512 : 4096);
        listed += pass[2].get<std::uint64_t>();
      }
      EXPECT_EQ(listed, prompts) << workload << " " << strategy;
    }
  }
}

TEST(Study, EvictsWholeRequestsOrOnlyWhatIsNeeded) {
  const auto makespans = study_makespans(model::fit_study(tables()), inputs()).value();
  const auto& whole = makespans.at("whole").at("fig9");
  const auto& partial = makespans.at("partial").at("fig9");
  EXPECT_EQ(whole.at("1K").at("swap").at(0), partial.at("1K").at("swap").at(0)) << "nobody is evicted";
  EXPECT_NE(whole.at("8K").at("swap").at(2), partial.at("8K").at("swap").at(2));
}

TEST(EngineRun, ARequestThatOutgrowsTheDeviceStillPaysForItsCopies) {
  sched::Config config = sched::vllm_0_4_2(4, 2048);
  config.eviction = sched::Eviction::kSwap;
  config.host_blocks = 100;
  EngineCosts costs;
  costs.step.token_s = 1e-5;
  costs.swap = {1e-6, 1e-9};
  costs.block_bytes = 1e6;
  costs.copies_per_block = 2;
  const Lengths request[] = {{60, 30}};  // its prompt takes all four blocks
  const EngineRun run = run_engine(config, request, costs);
  EXPECT_EQ(run.rejected, 1U);
  ASSERT_EQ(run.passes.size(), 1U);
  const double copies = copy_seconds(costs, 4, 1);
  EXPECT_GT(copies, 0);
  EXPECT_DOUBLE_EQ(run.overhead_s(), copies);
  EXPECT_DOUBLE_EQ(run.seconds, run.passes[0].seconds + copies);
}

}  // namespace
}  // namespace kvd::sim
