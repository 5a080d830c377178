// Counters and histograms that any thread may read while their owner, one thread at a time, writes. So to add is no
// locked instruction, which takes 5 ns and waits for all that was stored before; a GET adds some thirty times. No
// registry here: each room publishes a plain struct of these, and the server maps them to Prometheus names
// (src/node/metrics.cc).
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
  void add(std::uint64_t n = 1) noexcept { value_.store(value() + n, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// The same of which several threads are the owners.
class SharedCounter {
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
  void add(std::uint64_t n) noexcept { set(value() + n); }
  void sub(std::uint64_t n) noexcept { set(value() - n); }
  [[nodiscard]] std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// Counts by powers of two of a microsecond, each of them cut into kParts of one width: bucket i holds values below
// bound_us(i), the last everything above. With one part a bound is within a factor of two of what it stands for, with
// eight within 13 %. kParts is a power of two.
template <std::size_t kParts>
class PowerHistogram {
 public:
  static constexpr std::size_t kShift = std::bit_width(kParts) - 1;
  // Below kParts one for each microsecond; up to 2^24 us = 16.8 s; then one for the rest.
  static constexpr std::size_t kBuckets = kParts + (24 - kShift) * kParts + 1;
  void record_us(std::uint64_t us) noexcept {
    buckets_[bucket(us)].add();
    sum_us_.add(us);
  }
  [[nodiscard]] std::array<std::uint64_t, kBuckets> snapshot() const noexcept {
    std::array<std::uint64_t, kBuckets> counts{};
    for (std::size_t i = 0; i < kBuckets; ++i) counts[i] = buckets_[i].value();
    return counts;
  }
  [[nodiscard]] std::uint64_t sum_us() const noexcept { return sum_us_.value(); }
  [[nodiscard]] static constexpr std::uint64_t bound_us(std::size_t i) noexcept {
    if (i < kParts) return i + 1;
    return std::uint64_t{kParts + (i - kParts) % kParts + 1} << ((i - kParts) / kParts);
  }
  // Upper bound in microseconds of the bucket that holds the q-quantile (0 < q <= 1); 0 when nothing was recorded.
  [[nodiscard]] std::uint64_t quantile_us(double q) const noexcept {
    const auto counts = snapshot();
    std::uint64_t total = 0;
    for (const auto n : counts) total += n;
    if (total == 0) return 0;
    const auto rank = static_cast<std::uint64_t>(q * static_cast<double>(total - 1));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < kBuckets; ++i) {
      seen += counts[i];
      if (seen > rank) return bound_us(i);
    }
    return bound_us(kBuckets - 1);
  }

 private:
  static constexpr std::size_t bucket(std::uint64_t us) noexcept {
    if (us < kParts) return us;
    const std::size_t power = static_cast<std::size_t>(std::bit_width(us)) - 1 - kShift;
    const std::size_t i = kParts + power * kParts + ((us >> power) - kParts);
    return i < kBuckets ? i : kBuckets - 1;
  }

  std::array<Counter, kBuckets> buckets_;
  Counter sum_us_;
};

using LatencyHistogram = PowerHistogram<1>;
// For a latency that has a goal between two powers of two.
using FineLatencyHistogram = PowerHistogram<8>;

}  // namespace kvd
