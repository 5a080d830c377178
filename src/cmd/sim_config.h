// The TOML file of `kvdepot sim run`: which fleet, engine, workload, tiers and SLA. docs/sim.md lists the keys;
// examples/sim/ has commented ones.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/input.h"
#include "sim/arrivals.h"
#include "sim/fleet.h"
#include "sim/generators.h"

namespace kvd::cmd {

struct SimConfig {
  sim::FleetConfig fleet;
  std::string source;      // "trace", "shared-prefix", "poisson" or "multi-turn"
  std::string trace_path;  // of source "trace", as this process finds it
  std::uint64_t context_tokens_max = 0;
  std::uint32_t kv_tokens = 0;  // of an instance; engine.blocks follows with the block size
  sim::TraceOptions trace;
  InputFault arrivals_at;  // where a trace's arrivals are asked for; the text is the key
  sim::SharedPrefixOptions shared_prefix;
  sim::PoissonOptions poisson;
  sim::SessionOptions sessions;
  std::vector<std::string> assumptions;  // of the engine, for want of figures in the catalogue
  std::string text;                      // the configuration as it was taken, one "key = value" a line
};

// What is wrong with requests that may come as late as this.
[[nodiscard]] std::string too_late(double arrival_s);

// Reads `text`, with `overrides` ("fleet.policy=random") on top. Paths in `text` are seen from the folder of `file`,
// paths in `overrides` from where the process runs. Faults: syntax, keys that don't exist (with the nearest one that
// does) or belong to another workload, values of the wrong kind or out of range, missing units, no workload or two,
// requests longer than the context or later than kArrivalMaxS, an unknown policy or engine, a model that does not fit
// its GPUs.
FromInput<SimConfig> read_sim_config(std::string_view text, std::string_view file,
                                     const std::vector<std::string>& overrides);

}  // namespace kvd::cmd
