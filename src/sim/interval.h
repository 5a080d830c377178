// A mean over independent seeds and how far it may be off. Pure.
#pragma once

#include <vector>

namespace kvd::sim {

struct Interval {
  double mean = 0;
  double half = 0;  // of the two-sided 95 % interval by Student's t; 0 for a single value
};

// Requires at least one value.
[[nodiscard]] Interval interval(const std::vector<double>& values);

}  // namespace kvd::sim
