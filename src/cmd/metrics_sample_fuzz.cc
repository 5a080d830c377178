// Fuzzes the reader of metrics: an input is what somebody answered. What is read must be usable for quantiles and
// views.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cmd/metrics_sample.h"
#include "cmd/top_report.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  const auto sample = kvd::cmd::MetricsSample::parse({reinterpret_cast<const char*>(data), size});
  if (!sample) return 0;
  const auto buckets = sample->buckets("a");
  for (std::size_t i = 1; i < buckets.size(); ++i)
    if (buckets[i].upper < buckets[i - 1].upper) std::abort();
  const double p = kvd::cmd::quantile({}, buckets, 0.5);
  // 0 when nothing came, and then also where all bounds lie below it.
  const auto bound = [p](const auto& bucket) { return bucket.upper == p; };
  if (p != 0 && std::ranges::none_of(buckets, bound)) std::abort();
  if (sample->value("b") != sample->value("b")) std::abort();  // NaN
  (void)sample->label("c", "d");
  const kvd::cmd::Interval interval({}, *sample, 1);
  if (kvd::cmd::top_text(interval, "a").empty() || kvd::cmd::top_json(interval).empty()) std::abort();
  return 0;
}
