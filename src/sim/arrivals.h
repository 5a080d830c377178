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
};

struct TraceOptions {
  std::uint32_t copies = 1;        // each with prefix ids and jitter of its own
  double speed = 1;                // 2 = twice the load
  double jitter_s = 0;             // arrivals move by a uniform share of this
  std::uint64_t requests_max = 0;  // 0 = all
  std::uint64_t seed = 1;
};

// The trace must outlive the source. A trace without block ids gives every request a prompt of its own.
std::unique_ptr<ArrivalSource> trace_source(const trace::Trace& trace, const TraceOptions& options);

}  // namespace kvd::sim
