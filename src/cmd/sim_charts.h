// The study's figures as charts: predictions as lines, the given measurements as dots beside them.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "cmd/svg_chart.h"
#include "model/step_fit.h"

namespace kvd::cmd {

// One chart or more for every figure in `study` (the layout of study.json); 4b, 4c and 10b are bars. Times of `tables`
// become the dots.
std::vector<Chart> study_charts(const nlohmann::ordered_json& study, const model::StudyTables& tables);

}  // namespace kvd::cmd
