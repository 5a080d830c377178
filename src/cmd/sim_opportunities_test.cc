// Tests of the report on the study's open opportunities: how the adaptive arms are judged, and its charts.
#include "cmd/sim_opportunities.h"

#include <algorithm>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cmd/text_file.h"
#include "sim/study_text.h"

namespace kvd::cmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

sim::OpportunityRow row(const char* setting, bool fixed, const char* arm, double makespan, double worst_itl) {
  sim::OpportunityRow r;
  r.setting = setting;
  r.label = setting + 2;
  r.fixed = fixed;
  r.arm = arm;
  r.seeds = fixed ? 1 : 30;
  r.makespan_s = {makespan, 0};
  r.itl_p99_s = {0.05, 0};
  r.worst_makespan = 1.001;
  r.worst_itl_p99 = worst_itl;
  return r;
}

std::vector<sim::OpportunityRow> rows() {
  return {
      row("9 1K", true, "recompute", 10, 1),  row("9 1K", true, "swap", 12, 1),
      row("9 1K", true, "adaptive", 11, 1.5), row("10 6G", false, "recompute", 30, 1),
      row("10 6G", false, "swap", 20, 1),     row("10 6G", false, "adaptive", 20, 1.02),
  };
}

TEST(SimOpportunities, SaysWhereTheAdaptiveChoiceMissesItsLimit) {
  const std::string text = opportunities_text(rows());
  EXPECT_THAT(text, HasSubstr("adaptive, makespan: within 2 % of the better of both with every seed in 2 of 2"));
  EXPECT_THAT(text, HasSubstr("adaptive, p99 ITL: within 2 % of the better of both with every seed in 1 of 2 settings; "
                              "at worst +50.00 % (9 1K)"));
  EXPECT_THAT(text, HasSubstr("\nchecks: tokens and blocks of every run are conserved"));
}

TEST(SimOpportunities, ShowsNoIntervalWhereNothingIsDrawn) {
  const std::string text = opportunities_text(rows());
  EXPECT_THAT(text, HasSubstr("| seeds (1 seed: deterministic) |"));
  EXPECT_THAT(text, HasSubstr("\n| 9 1K | 1 | recompute | 10.00 | +0.00 | 1.0010 | 50.0 | +0.0 | 1.000 | 0 + 0 |\n"));
  EXPECT_THAT(text, HasSubstr("\n| 10 6G | 30 | recompute | 30.00 ± 0.00 | +0.00 ± 0.00 | 1.0010 |"));
}

TEST(SimOpportunities, AListThatDoesNotFitIsRefusedWithItsPlace) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "kvd_sim_opportunities_test";
  std::filesystem::create_directories(folder);
  auto workloads = nlohmann::json::parse(sim::built_in_workloads());
  workloads["zipf_128_8192_ratio_0.5"][7] = {40'000, 10'000};
  ASSERT_EQ(write_text((folder / "calibration.json").string(), std::string(sim::built_in_calibration())), "");
  ASSERT_EQ(write_text((folder / "workloads.json").string(), workloads.dump()), "");
  StudyFlags flags;
  flags.data = folder.string();
  flags.seeds = 2;
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_opportunities(flags), 2);
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      HasSubstr("workloads.json: zipf_128_8192_ratio_0.5[7]: 40000 + 10000 = 50000 tokens take 3125 blocks of 16"));
  std::filesystem::remove_all(folder);
}

TEST(SimOpportunities, ChartsShowWhatIsAboveTheBestArmOfEachSetting) {
  const std::vector<Chart> charts = opportunity_charts(rows());
  ASSERT_EQ(charts.size(), 4U);
  EXPECT_THAT(charts[0].categories, ElementsAre("1K"));
  EXPECT_THAT(charts[2].categories, ElementsAre(" 6G"));
  const auto adaptive = std::ranges::find(charts[0].series, std::string("adaptive"), &ChartSeries::name);
  ASSERT_NE(adaptive, charts[0].series.end());
  EXPECT_THAT(adaptive->points, ElementsAre(Pair(0, testing::DoubleNear(10, 1e-9))));
  EXPECT_THAT(charts[2].series.front().points, ElementsAre(Pair(0, testing::DoubleNear(50, 1e-9))));
}

}  // namespace
}  // namespace kvd::cmd
