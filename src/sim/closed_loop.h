// Two small simulations under the assumptions of the closed forms of the SDC'25 talk, to compare the forms with. Pure.
#pragma once

#include <cstdint>

namespace kvd::sim {

// A prompt's layers on three resources that each take one layer after the other: the link that loads the stored part's
// KV, the device that computes the rest, the link that stores it. A layer is computed when it is loaded and the layer
// before is computed, and stored when it is computed.
struct LayerTimes {
  double load_s = 0;  // of one layer
  double compute_s = 0;
  double store_s = 0;
};
struct Pipeline {
  double seconds = 0;  // until the last layer is computed and stored
  double fill_s = 0;   // of which the busiest resource was waiting for its first layer, or done before the end
};
Pipeline layer_pipeline(std::uint32_t layers, const LayerTimes& times);

// `slots` requests that are always there, in mixed passes: a pass takes `one_s`, `context_s` more for each other slot
// that decodes, and `prefill_s` for each other slot whose request has ended and been replaced. Outputs are geometric
// with this mean. Returns the mean pass of one slot's request, over `passes` passes.
double busy_slots_tpot(std::uint32_t slots, double one_s, double context_s, double prefill_s, double output_mean,
                       std::uint64_t passes, std::uint64_t seed);

}  // namespace kvd::sim
