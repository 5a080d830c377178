#include "base/random.h"

#include <bit>

namespace kvd {

Random::Random(std::uint64_t seed) noexcept {
  for (auto& word : state_) {
    seed += 0x9E3779B97F4A7C15u;
    std::uint64_t z = seed;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    word = z ^ (z >> 31);
  }
}

std::uint64_t Random::next() noexcept {
  const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const std::uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

}  // namespace kvd
