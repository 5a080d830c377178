// MetricsSample: the figures of a depot at one moment, as its /metrics gives them (Prometheus text format 0.0.4).
//
// Pure. The text is outside bytes: a line that is none of the format is an error, names that nobody asks for are kept
// and ignored.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvd::cmd {

class MetricsSample {
 public:
  // A depot has 230, 20 for each of 65 tenants, and 13 for each of 16 devices.
  static constexpr std::size_t kSeriesMax = 10'000;

  // kInvalid: not of this format, a number that is none, or more than kSeriesMax series.
  static Result<MetricsSample> parse(std::string_view text);

  // A figure without labels, or with these: `name{label="value"}`; 0 when there is none.
  [[nodiscard]] double value(std::string_view name) const;
  // The label of the only series of `name` that has it; empty when there is none.
  [[nodiscard]] std::string label(std::string_view name, std::string_view label) const;

  // The same of all series of `name` that have it, in order.
  [[nodiscard]] std::vector<std::string> labels(std::string_view name, std::string_view label) const;
  // Whether there is such a figure.
  [[nodiscard]] bool contains(std::string_view name) const { return series_.contains(name); }

  struct Bucket {
    double upper = 0;  // in the metric's unit; the last is infinite
    double count = 0;  // of all values up to that
  };
  // Buckets of a histogram, upper bounds growing; empty when there is none.
  [[nodiscard]] std::vector<Bucket> buckets(std::string_view name) const;

 private:
  // "name" or "name{labels}" as it was written.
  std::map<std::string, double, std::less<>> series_;
};

// The upper bound of the bucket that holds the quantile `q` (0 < q <= 1) of the values that came between two samples of
// a histogram; of all in `now` when `before` is empty or another histogram. 0 when none came.
double quantile(const std::vector<MetricsSample::Bucket>& before, const std::vector<MetricsSample::Bucket>& now,
                double q);

}  // namespace kvd::cmd
