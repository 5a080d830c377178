// The TOML file of `kvdepot sim run`: which fleet, engine, workload, depot and SLA. docs/sim.md lists the keys;
// examples/sim/ has commented ones.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/input.h"
#include "sim/arrivals.h"
#include "sim/fleet.h"

namespace kvd::cmd {

struct SimConfig {
  sim::FleetConfig fleet;
  std::string trace_path;  // empty = the shared-prefix generator
  std::uint64_t context_tokens_max = 0;
  std::uint32_t kv_tokens = 0;  // of an instance; engine.blocks follows with the block size
  sim::TraceOptions trace;
  sim::SharedPrefixOptions shared_prefix;
  std::string text;  // the configuration as it was taken, one "key = value" a line
};

// Reads `text`, with `overrides` ("fleet.policy=random") on top. Faults: syntax, keys that don't exist (with the
// nearest one that does), values of the wrong kind or out of range, no workload or two, an unknown policy or engine.
FromInput<SimConfig> read_sim_config(std::string_view text, std::string_view file,
                                     const std::vector<std::string>& overrides);

}  // namespace kvd::cmd
