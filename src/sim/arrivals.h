// Where a fleet's requests come from: an interface, and traces (also many copies of one); generators.h has the rest.
// Pure; a source is asked for one request after the other, in order of time.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/linear_pass.h"
#include "sched/prefix_cache.h"
#include "trace/trace.h"

namespace kvd::sim {

struct Arrival {
  model::Picoseconds time = 0;
  sched::Units units;  // points into the source
  std::uint32_t prompt = 0;
  std::uint32_t output = 0;
};

class ArrivalSource {
 public:
  virtual ~ArrivalSource() = default;
  // The next request; false at the end. Times never decrease. Ids that `out.units` points at stay where they are as
  // long as the source, since caches point at them, too.
  virtual bool next(Arrival& out) = 0;
  // Blocks of the engine must divide a unit's tokens.
  [[nodiscard]] virtual std::uint32_t unit_tokens() const = 0;
  // How many requests there will be, about; for a progress bar. 0 = not known.
  [[nodiscard]] virtual double expected() const { return 0; }
};

// Latest arrival that is taken, 100 days: picoseconds in 64 bits reach 106, and the last requests need time to end.
inline constexpr double kArrivalMaxS = 8'640'000;

// What a sum of `count` exponential gaps of mean 1 does not exceed but once in 10^20: ten standard deviations above its
// mean, and more where there are few.
[[nodiscard]] inline double gaps_most(double count) { return count + 10 * std::sqrt(count) + 50; }

// Prefix ids have 32 bits: a workload that hands out more would give different prompts the same ids.
inline constexpr double kPrefixIdsMax = 4294967295.0;

struct TraceOptions {
  std::uint32_t copies = 1;        // side by side, each with prefix ids and jitter of its own
  std::uint32_t repeats = 1;       // of all copies, one after the other, again with ids and jitter of their own
  double speed = 1;                // 2 = twice the load
  double rate = 0;                 // Poisson arrivals, so many a second, instead of the trace's; 0 = the trace's
  double jitter_s = 0;             // arrivals move by a uniform share of this
  std::uint64_t requests_max = 0;  // 0 = all
  std::uint64_t seed = 1;
};

// Prefix ids that these copies and repeats need, as far as `requests_max` asks for them; at most kPrefixIdsMax fit.
[[nodiscard]] double prefix_ids(const trace::Trace& trace, const TraceOptions& options);
// When the last of them may come, but for one run in 10^20; at most kArrivalMaxS is taken.
[[nodiscard]] double last_arrival_s(const trace::Trace& trace, const TraceOptions& options);

// The trace must outlive the source. Requests are made when they are asked for: held are those whose jitter may still
// put them before the next one, 24 bytes each. A repeat begins a mean gap behind the last arrival of the one before. A
// trace without block ids gives every request a prompt of its own; an output of 0 tokens becomes one, since a prompt's
// last pass makes a token. Requires arrivals, the trace's or `rate`, where there are repeats, and ids and times that
// fit (above).
std::unique_ptr<ArrivalSource> trace_source(const trace::Trace& trace, const TraceOptions& options);

}  // namespace kvd::sim
