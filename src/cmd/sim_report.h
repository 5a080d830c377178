// How a simulated fleet is shown: summary, CSVs, charts over time. Pure; text out.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cmd/sim_config.h"
#include "cmd/svg_chart.h"

namespace kvd::cmd {

// What a run cost the machine that simulated it.
struct SimCost {
  double wall_s = 0;      // everything, with reading the trace
  double simulate_s = 0;  // of which simulating
  double peak_mib = 0;
};

// Figures of the simulated fleet only: the same bytes for the same run. Times are null, in the text "unstable" or "-",
// where queues grew to the end of the arrivals (they would be of the run's length) and where no request has them.
[[nodiscard]] nlohmann::ordered_json fleet_json(const sim::FleetResult& result, const SimConfig& config);
[[nodiscard]] std::string fleet_text(const sim::FleetResult& result, const SimConfig& config);
[[nodiscard]] std::string cost_text(const sim::FleetResult& result, const SimCost& cost);
// A line a request, in order of their end; a line an event; a line a sample. Times in seconds.
[[nodiscard]] std::string requests_csv(const sim::FleetResult& result);
[[nodiscard]] std::string passes_csv(const sim::FleetResult& result);
[[nodiscard]] std::string samples_csv(const sim::FleetResult& result, const SimConfig& config);
// Requests, use of engines and caches, hits and transfers over time; needs samples.
[[nodiscard]] std::vector<Chart> fleet_charts(const sim::FleetResult& result, const SimConfig& config);
// Whether the run's own checks hold: tokens, blocks and loads conserved, Little's law within 1 %.
[[nodiscard]] bool sound(const sim::FleetResult& result);

}  // namespace kvd::cmd
