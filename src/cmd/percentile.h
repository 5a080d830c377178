// What many measured values come to. Pure; of at least one value.
#pragma once

#include <vector>

namespace kvd::cmd {

double median(std::vector<double> values);
// The value at the place nearest to a share of all, 0 to 1.
double percentile(std::vector<double> values, double share);

}  // namespace kvd::cmd
