// `kvdepot sim opportunities`: the IPDPS'25 study's open opportunities against recomputation and swapping.
#pragma once

#include <string>
#include <vector>

#include "cmd/sim_study.h"
#include "cmd/svg_chart.h"
#include "sim/opportunities.h"

namespace kvd::cmd {

// Runs all settings on all cores; prints to stdout or writes `out`, and `html` and `svg`; complains on stderr, and
// returns the exit status. What it prints does not depend on the number of cores.
int run_opportunities(const StudyFlags& flags);

// How the adaptive arms are judged, then a table in Markdown with a line per setting and arm.
[[nodiscard]] std::string opportunities_text(const std::vector<sim::OpportunityRow>& rows);
// Makespan and 99th percentile of inter-token latency, as bars: percent above the best arm of the setting.
[[nodiscard]] std::vector<Chart> opportunity_charts(const std::vector<sim::OpportunityRow>& rows);

}  // namespace kvd::cmd
