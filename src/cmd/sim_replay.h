// `kvdepot sim replay`: a trace's hit rate by capacity, segment size and eviction policy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trace/trace.h"

namespace kvd::cmd {

struct SimReplayFlags {
  std::string trace;                                      // a file
  std::vector<double> capacities = {2, 5, 10, 20, 40};    // percent of the trace's distinct blocks
  std::vector<std::uint32_t> segments = {4, 8, 32, 128};  // blocks of one
  std::uint32_t interleave = 64;                          // requests written at once, in the lines that say so
  bool two_open = false;                                  // also with what may stay and what goes in segments apart
  std::uint32_t head_blocks = 4;                          // of a prompt, which are taken for what stays
  std::uint32_t block_tokens = 512;
  std::string out;  // a file; empty = stdout
  bool json = false;
};

// Prints to stdout or writes `out`; complains on stderr, and returns the exit status.
int run_sim_replay(const SimReplayFlags& flags);

// The hit rates of every capacity and cache; null where the capacity holds fewer than two segments.
[[nodiscard]] nlohmann::ordered_json replay_json(const trace::Trace& trace, const SimReplayFlags& flags);
// That as a table in Markdown.
[[nodiscard]] std::string replay_text(const nlohmann::ordered_json& replay);

}  // namespace kvd::cmd
