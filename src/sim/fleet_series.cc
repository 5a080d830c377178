#include "sim/fleet_series.h"

namespace kvd::sim {

void FleetSeries::add(const FleetSample& sample) {
  samples_.push_back(sample);
  if (samples_.size() == kSamplesMax) {
    for (std::size_t i = 0; i < kSamplesMax / 2; ++i) samples_[i] = samples_[2 * i];
    samples_.resize(kSamplesMax / 2);
    due_ -= every_;  // the last one has gone
    every_ *= 2;
  }
  due_ += every_;
}

}  // namespace kvd::sim
