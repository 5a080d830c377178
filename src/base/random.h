// A small seeded generator (xoshiro256**, seeded by splitmix64; Blackman and Vigna 2018): same seed, same numbers, on
// every platform, unlike the distributions of <random>. Not for secrets. One owner, no locking.
#pragma once

#include <cstdint>

namespace kvd {

class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept;

  // 64 uniform bits.
  std::uint64_t next() noexcept;
  // Uniform in [0, bound), bound > 0; the modulo bias is below bound / 2^64.
  std::uint64_t below(std::uint64_t bound) noexcept { return next() % bound; }
  // True with probability numerator / denominator.
  bool chance(std::uint64_t numerator, std::uint64_t denominator) noexcept { return below(denominator) < numerator; }
  // Uniform in [0, 1).
  double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  std::uint64_t state_[4];
};

}  // namespace kvd
