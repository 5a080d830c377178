#include "sim/closed_loop.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"

namespace kvd::sim {

Pipeline layer_pipeline(std::uint32_t layers, const LayerTimes& times) {
  double loaded = 0;
  double computed = 0;
  double stored = 0;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    loaded += times.load_s;
    computed = std::max(computed, loaded) + times.compute_s;
    stored = std::max(stored, computed) + times.store_s;
  }
  const double busiest = std::max({times.load_s, times.compute_s, times.store_s}) * layers;
  return {stored, stored - busiest};
}

double busy_slots_tpot(std::uint32_t slots, double one_s, double context_s, double prefill_s, double output_mean,
                       std::uint64_t passes, std::uint64_t seed) {
  Random random(seed);
  const double log_more = std::log1p(-1 / output_mean);
  // Tokens of a request: the number of trials up to the first success of probability 1 / mean.
  const auto tokens = [&] { return static_cast<std::uint64_t>(std::ceil(std::log1p(-random.uniform()) / log_more)); };
  std::vector<std::uint64_t> left(slots);
  for (std::uint64_t& l : left) l = std::max<std::uint64_t>(1, tokens());
  double total = 0;
  for (std::uint64_t pass = 0; pass < passes; ++pass) {
    double seconds = one_s;
    for (std::uint32_t slot = 1; slot < slots; ++slot) {
      seconds += context_s;
      if (--left[slot] > 0) continue;
      left[slot] = std::max<std::uint64_t>(1, tokens());
      seconds += prefill_s;
    }
    total += seconds;
  }
  return total / static_cast<double>(passes);
}

}  // namespace kvd::sim
