// Where a fleet's requests come from: an interface, and traces (also many copies of one); generators.h has the rest.
// Pure; a source is asked for one request after the other, in order of time.
#pragma once

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
  // The next request; false at the end. Times never decrease.
  virtual bool next(Arrival& out) = 0;
  // Blocks of the engine must divide a unit's tokens.
  [[nodiscard]] virtual std::uint32_t unit_tokens() const = 0;
  // How many requests there will be, about; for a progress bar. 0 = not known.
  [[nodiscard]] virtual double expected() const { return 0; }
};

// Prefix ids have 32 bits: a workload that hands out more would give different prompts the same ids.
inline constexpr double kPrefixIdsMax = 4294967295.0;

struct TraceOptions {
  std::uint32_t copies = 1;        // side by side, each with prefix ids and jitter of its own
  std::uint32_t repeats = 1;       // of all copies, one after the other, again with ids and jitter of their own
  double speed = 1;                // 2 = twice the load
  double jitter_s = 0;             // arrivals move by a uniform share of this
  std::uint64_t requests_max = 0;  // 0 = all
  std::uint64_t seed = 1;
};

// Prefix ids that these copies and repeats need, as far as `requests_max` asks for them; at most kPrefixIdsMax fit.
[[nodiscard]] double prefix_ids(const trace::Trace& trace, const TraceOptions& options);

// The trace must outlive the source. Requests are made when they are asked for: held are those whose jitter may still
// put them before the next one, 24 bytes each. A repeat begins a mean gap behind the last arrival of the one before. A
// trace without block ids gives every request a prompt of its own; an output of 0 tokens becomes one, since a prompt's
// last pass makes a token. Requires a trace with arrivals where there are repeats, and ids that fit (above).
std::unique_ptr<ArrivalSource> trace_source(const trace::Trace& trace, const TraceOptions& options);

}  // namespace kvd::sim
