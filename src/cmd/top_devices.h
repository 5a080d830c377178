// What `kvdepot top` shows of the depot's devices: the drives of its flash tier. Pure. Names are the depot's labels, of
// which there are at most 16; what else a sample holds is bounded by MetricsSample.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "cmd/top_report.h"

namespace kvd::cmd {

// A line for each where there are several, by directory; else empty: then the store's own figures tell it all.
std::string device_lines(const Interval& interval);
// By directory, also the only one.
nlohmann::json devices_json(const Interval& interval);

}  // namespace kvd::cmd
