// The verb `kvdepot bench store`: what a store gives on a drive, next to what the drive gives; or on several, next to
// what all of them give at once. Its flags, and running it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cmd/verb.h"

namespace kvd::cmd {

struct BenchStoreFlags {
  std::string dir;
  std::vector<std::string> devices = {};
  std::string size = "2GiB";
  unsigned rounds = 3;
  bool json = false;
};

// Prints a table or JSON; leaves nothing behind. 0, or 2 after one line on stderr.
int run_bench_store(const BenchStoreFlags& flags);

// Adds `store` to the verb `bench`.
Verb add_bench_store(CLI::App& bench);

}  // namespace kvd::cmd
