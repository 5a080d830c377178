// Counters and histograms that any thread may read while their owner writes. No registry here: each room publishes a
// plain struct of these, and the server maps them to Prometheus names (src/node/metrics.cc).
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace kvd {

// A number that only grows. Relaxed: readers see a recent value, never a torn one.
class Counter {
 public:
  void add(std::uint64_t n = 1) noexcept { value_.fetch_add(n, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// A number that moves both ways.
class Gauge {
 public:
  void set(std::uint64_t n) noexcept { value_.store(n, std::memory_order_relaxed); }
  void add(std::uint64_t n) noexcept { value_.fetch_add(n, std::memory_order_relaxed); }
  void sub(std::uint64_t n) noexcept { value_.fetch_sub(n, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// Counts by powers of two of a microsecond: bucket i holds values below 2^i us, the last everything above.
class LatencyHistogram {
 public:
  static constexpr std::size_t kBuckets = 26;  // up to 2^24 us = 16.8 s, then one for the rest
  void record_us(std::uint64_t us) noexcept;
  [[nodiscard]] std::array<std::uint64_t, kBuckets> snapshot() const noexcept;
  [[nodiscard]] std::uint64_t sum_us() const noexcept { return sum_us_.value(); }
  // Upper bound in microseconds of the bucket that holds the q-quantile (0 < q <= 1); 0 when nothing was recorded.
  [[nodiscard]] std::uint64_t quantile_us(double q) const noexcept;

 private:
  std::array<Counter, kBuckets> buckets_;
  Counter sum_us_;
};

}  // namespace kvd
