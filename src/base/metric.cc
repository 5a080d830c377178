#include "base/metric.h"

#include <algorithm>

namespace kvd {

void LatencyHistogram::record_us(std::uint64_t us) noexcept {
  const auto bucket = std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(us)), kBuckets - 1);
  buckets_[bucket].add();
  sum_us_.add(us);
}

std::array<std::uint64_t, LatencyHistogram::kBuckets> LatencyHistogram::snapshot() const noexcept {
  std::array<std::uint64_t, kBuckets> counts{};
  std::ranges::transform(buckets_, counts.begin(), [](const Counter& c) { return c.value(); });
  return counts;
}

std::uint64_t LatencyHistogram::quantile_us(double q) const noexcept {
  const auto counts = snapshot();
  std::uint64_t total = 0;
  for (const auto n : counts) total += n;
  if (total == 0) return 0;
  const auto rank = static_cast<std::uint64_t>(q * static_cast<double>(total - 1));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    seen += counts[i];
    if (seen > rank) return std::uint64_t{1} << i;
  }
  return std::uint64_t{1} << (kBuckets - 1);
}

}  // namespace kvd
