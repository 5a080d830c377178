#include "model/load_cost.h"

#include <algorithm>
#include <cmath>

namespace kvd::model {
namespace {

constexpr double kWeight = 0.4;            // of a new observation
constexpr double kWeightContended = 0.15;  // of one that shared the CPU with a pass
constexpr double kStale = 2;               // so much faster than believed: the belief was wrong
constexpr double kSecondsMin = 1e-12;      // a byte: 1 TB/s

// A load may be slow by accident, but not fast: what was learnt from a slow one is dropped as soon as one shows better.
void learn(double& believed, double seen, double weight) noexcept {
  seen = std::max(seen, kSecondsMin);
  believed += (seen * kStale < believed ? 1 : weight) * (seen - believed);
}

}  // namespace

void LoadCost::observe(std::uint64_t pool_bytes, std::uint64_t flash_bytes, double seconds, bool contended) noexcept {
  const auto pool = static_cast<double>(pool_bytes);
  const auto flash = static_cast<double>(flash_bytes);
  if (pool + flash <= 0 || !(seconds > 0) || !std::isfinite(seconds)) return;
  const double moving = std::max(seconds - kFixedSeconds, seconds / 10);
  bool& measured = flash > pool ? flash_measured_ : pool_measured_;
  const double weight = !measured ? 1 : contended ? kWeightContended : kWeight;
  // The tier that holds most of the bytes learns; the other one's share is subtracted as it is believed now.
  if (flash > pool) {
    const double rest = std::max(moving - pool * pool_s_, moving * flash / (pool + flash) / 4);
    learn(flash_s_, rest / flash, weight);
  } else {
    const double rest = std::max(moving - flash * flash_s_, moving * pool / (pool + flash) / 4);
    learn(pool_s_, rest / pool, weight);
  }
  measured = true;
}

}  // namespace kvd::model
