// Where a fleet's requests come from: traces (also many copies of one), and generators. Pure; a source is asked for one
// request after the other, in order of time.
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

// llm-d's shared-prefix benchmark: groups of prompts with a common head, Poisson stages.
struct SharedPrefixOptions {
  std::uint32_t groups = 150;
  std::uint32_t prompts = 5;  // a group
  std::uint32_t shared_tokens = 6000;
  std::uint32_t own_tokens = 1200;
  std::uint32_t output = 1000;
  struct Stage {
    double rate = 0;
    double seconds = 0;
  };
  std::vector<Stage> stages;
  double gap_s = 0;  // idle time between stages, for the last requests of one to end
  std::uint64_t seed = 1;
};

// Requires that a common divisor of both lengths is a whole number of blocks; unit_tokens() says which.
std::unique_ptr<ArrivalSource> shared_prefix_source(const SharedPrefixOptions& options);

}  // namespace kvd::sim
