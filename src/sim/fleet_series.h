// A fleet over time: what instances, caches and tiers hold at points in time, and what has been done until then. As
// many points as a chart is wide, however long the run: when there are kSamplesMax, every second one goes and the rest
// are twice as far apart. Pure values; one owner.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/linear_pass.h"

namespace kvd::sim {

inline constexpr std::size_t kSamplesMax = 1024;

struct FleetSample {
  double time_s = 0;
  // At this moment:
  std::uint64_t waiting = 0;
  std::uint64_t running = 0;
  double kv_used = 0;                   // share of all instances' blocks that requests hold
  double kv_cached = 0;                 // share that is cached and free to take
  std::array<double, 3> tier_tokens{};  // held in DRAM, flash, depot, over all instances
  // Since the start:
  double busy_s = 0;  // of all instances
  double output_tokens = 0;
  double prompt_tokens = 0;  // of finished requests, as are the next two
  double hit_tokens = 0;
  double loaded_tokens = 0;
  std::array<double, 3> read_bytes{};
  std::array<double, 3> written_bytes{};
};

class FleetSeries {
 public:
  // The first sample is due at 0. `every` <= 0: never.
  explicit FleetSeries(model::Picoseconds every) noexcept : every_(every), due_(every > 0 ? 0 : INT64_MAX) {}

  [[nodiscard]] model::Picoseconds due() const noexcept { return due_; }
  // Takes the sample of due().
  void add(const FleetSample& sample);
  [[nodiscard]] std::vector<FleetSample> take() noexcept { return std::move(samples_); }

 private:
  model::Picoseconds every_;
  model::Picoseconds due_;
  std::vector<FleetSample> samples_;
};

}  // namespace kvd::sim
