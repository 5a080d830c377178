// A prompt's layers one after the other: what layerwise_time() (sim/tiers.h) and the closed forms say without walking
// through them. For tests that compare the three.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvd::sim {

// What one layer takes on three resources that each serve one layer after the other: the link that loads the stored
// part's KV, the device that computes the rest, the link that stores it.
struct LayerTimes {
  double load_s = 0;
  double compute_s = 0;
  double store_s = 0;
};
struct Pipeline {
  double seconds = 0;  // until the last layer is computed and stored
  double fill_s = 0;   // of which the busiest resource was waiting for its first layer, or done before the end
};

// A layer is computed when it is loaded and the layer before is computed, and stored when it is computed.
inline Pipeline layer_pipeline(std::uint32_t layers, const LayerTimes& times) {
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

}  // namespace kvd::sim
