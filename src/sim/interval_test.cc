// Intervals over seeds against quantiles of Student's t from tables.
#include "sim/interval.h"

#include <cmath>

#include <gtest/gtest.h>

namespace kvd::sim {
namespace {

TEST(Interval, FollowsStudentsTable) {
  // n values 0 and 1 in turn; 0.975 quantiles of t for n - 1 degrees of freedom.
  for (const auto& [n, t] : {std::pair{2, 12.706}, {4, 3.182}, {6, 2.571}, {10, 2.262}, {30, 2.045}, {120, 1.980}}) {
    std::vector<double> values;
    for (int i = 0; i < n; ++i) values.push_back(i % 2);
    const double deviation = std::sqrt(n * 0.25 / (n - 1));
    const Interval result = interval(values);
    EXPECT_NEAR(result.mean, 0.5, 1e-12);
    EXPECT_NEAR(result.half / (deviation / std::sqrt(n)), t, 0.01 * t) << n;
  }
  EXPECT_EQ(interval({3}).half, 0);
}

}  // namespace
}  // namespace kvd::sim
