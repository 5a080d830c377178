// `kvdepot sim run`: simulates the fleet of a TOML file.
#pragma once

#include <string>
#include <vector>

namespace kvd::cmd {

struct SimRunFlags {
  std::string config;
  std::vector<std::string> set;  // section.key=value, over the file
  std::string requests;          // CSV with a line per request
  bool no_skip = false;
  bool json = false;
};

// Prints a summary, writes what was asked for, complains on stderr; returns the exit status.
int run_sim_run(const SimRunFlags& flags);

}  // namespace kvd::cmd
