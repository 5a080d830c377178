// What `kvdepot top` shows of the depot's tenants. Pure. Names are the depot's labels, of which there are at most 65
// (node::Tenants); what else a sample holds is bounded by MetricsSample.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cmd/top_report.h"

namespace kvd::cmd {

inline constexpr std::size_t kTenantsShown = 10;  // in lines; JSON has all

// A line for each of those that moved most, then held most; empty where the depot knows no tenants but its own default.
std::string tenant_lines(const Interval& interval);
// By name, all that the metrics name: what each holds and may hold, and what it did in the interval.
nlohmann::json tenants_json(const Interval& interval);

}  // namespace kvd::cmd
