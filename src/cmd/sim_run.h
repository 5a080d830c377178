// `kvdepot sim run` and `kvdepot sim sweep`: simulate the fleet of a TOML file, once or over values and seeds.
#pragma once

#include <string>
#include <vector>

namespace kvd::cmd {

struct SimRunFlags {
  std::string config;
  std::vector<std::string> set;     // section.key=value, over the file
  std::vector<std::string> ablate;  // names of mechanisms
  std::string requests;             // CSV with a line per request
  std::string passes;               // CSV with a line per event
  std::string series;               // CSV with a line per sample
  std::string html;                 // a page with charts over time
  bool no_skip = false;
  bool json = false;
};

// Prints a summary, writes what was asked for, complains on stderr; returns the exit status.
int run_sim_run(const SimRunFlags& flags);

struct SimSweepFlags {
  std::string config;
  std::vector<std::string> set;
  std::vector<std::string> vary;    // section.key=V,V,... or ablate=NAME,... ; all combinations
  std::vector<std::string> ablate;  // in all arms
  unsigned seeds = 10;              // 1 .. N, the same for all arms
  unsigned jobs = 0;                // threads; 0 = one a core
  std::string out;                  // CSV with a line per run
  std::string html;
  bool json = false;
};

// The same output whatever the number of threads.
int run_sim_sweep(const SimSweepFlags& flags);

}  // namespace kvd::cmd
