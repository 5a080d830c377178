// The text of data/ipdps25/*.json, compiled in. study_text.cc is made from study_text.cc.in by the build.
#pragma once

#include <string_view>

namespace kvd::sim {

[[nodiscard]] std::string_view built_in_calibration();
[[nodiscard]] std::string_view built_in_workloads();

}  // namespace kvd::sim
