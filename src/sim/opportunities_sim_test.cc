// The limit of the adaptive choice in every setting of the comparison: label sim, for its length.
#include <algorithm>
#include <cstdio>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "sim/adaptive_eviction.h"
#include "sim/opportunities.h"
#include "sim/study_text.h"

namespace kvd::sim {
namespace {

constexpr std::uint32_t kSeeds = 3;

// Never worse than the better of recompute and swap by more than 2 %, in makespan and in the tail, with any seed.
TEST(Opportunities, TheAdaptiveChoiceKeepsItsLimitInAllSettings) {
  const model::StudyFit fit = model::fit_study(read_tables(built_in_calibration(), "calibration.json").value());
  const StudyInputs inputs = read_inputs(built_in_workloads(), "workloads.json").value();
  double worst_makespan = 0;
  double worst_itl_p99 = 0;
  std::set<std::string> settings;
  for (std::size_t at = 0; at < opportunity_settings(); ++at) {
    const auto rows = opportunities(fit, inputs, at, kSeeds);
    const auto adaptive = std::ranges::find(rows, "adaptive", &OpportunityRow::arm);
    ASSERT_NE(adaptive, rows.end());
    EXPECT_EQ(adaptive->seeds, adaptive->fixed ? 1U : kSeeds) << adaptive->setting;
    EXPECT_LE(adaptive->worst_makespan, kWorseAtMost) << adaptive->setting;
    EXPECT_LE(adaptive->worst_itl_p99, kWorseAtMost) << adaptive->setting;
    worst_makespan = std::max(worst_makespan, adaptive->worst_makespan);
    worst_itl_p99 = std::max(worst_itl_p99, adaptive->worst_itl_p99);
    settings.insert(adaptive->setting);
  }
  EXPECT_EQ(settings.size(), 24U);
  std::printf("%zu settings, at worst %+.2f %% in makespan and %+.2f %% in the tail\n", settings.size(),
              100 * (worst_makespan - 1), 100 * (worst_itl_p99 - 1));
}

}  // namespace
}  // namespace kvd::sim
