// What `kvdepot top` shows of a depot: what it did between two samples of its metrics, and how it stands. Pure.
#pragma once

#include <string>
#include <string_view>

#include "cmd/metrics_sample.h"

namespace kvd::cmd {

// Two samples of one depot, at least `apart_s` apart. Rates are per second of the depot's own clock; where that says
// that it was started again in between, or `before` is empty, since its start.
class Interval {
 public:
  Interval(const MetricsSample& before, const MetricsSample& now, double apart_s);

  [[nodiscard]] const MetricsSample& now() const noexcept { return now_; }
  [[nodiscard]] const MetricsSample& before() const noexcept { return before_; }
  [[nodiscard]] double seconds() const noexcept { return seconds_; }
  [[nodiscard]] double gained(std::string_view counter) const;
  [[nodiscard]] double rate(std::string_view counter) const;
  // Of a histogram in seconds; 0 when nothing came, infinite when beyond its last bound.
  [[nodiscard]] double quantile(std::string_view histogram, double q) const;

 private:
  const MetricsSample& now_;
  MetricsSample before_;
  double seconds_;
};

// For how long the flash tier has been off, at least, as far as it was seen: in seconds, 0 when it is on. `before` is
// the answer of the view before. A depot tells that it is off, and not since when.
double flash_off_s(const Interval& interval, double before);

// Some 15 lines of at most 100 columns, and more where there are several devices (up to 17) or tenants (up to 12).
// `address` is where the metrics came from, `off_s` flash_off_s() of this view.
std::string top_text(const Interval& interval, std::string_view address, double off_s = 0);
// One object in one line: rates per second, sizes in bytes, times in seconds; what is not known is null.
std::string top_json(const Interval& interval, double off_s = 0);

}  // namespace kvd::cmd
