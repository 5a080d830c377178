#include "sim/interval.h"

#include <array>
#include <cmath>

#include "base/check.h"

namespace kvd::sim {

Interval interval(const std::vector<double>& values) {
  KVD_CHECK(!values.empty());
  const auto n = static_cast<double>(values.size());
  double mean = 0;
  for (const double v : values) mean += v / n;
  if (values.size() == 1) return {mean, 0};
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  // Quantiles 0.975: a table up to four degrees of freedom, Cornish and Fisher's expansion beyond (2.258 instead of
  // 2.262 at nine, 2.045 at 29).
  constexpr std::array<double, 4> kFew{12.706, 4.303, 3.182, 2.776};
  constexpr double kNormal = 1.959964;
  const double freedom = n - 1;
  double t = kNormal + (kNormal * kNormal * kNormal + kNormal) / (4 * freedom) +
             (5 * std::pow(kNormal, 5) + 16 * std::pow(kNormal, 3) + 3 * kNormal) / (96 * freedom * freedom);
  if (values.size() <= kFew.size() + 1) t = kFew.at(values.size() - 2);
  return {mean, t * std::sqrt(squares / freedom / n)};
}

}  // namespace kvd::sim
