// The verb `kvdepot bench store`: what a store gives on a drive, next to what the drive gives. Its flags, and running
// it.
#pragma once

#include <cstdint>
#include <string>

#include "cmd/inspect.h"

namespace kvd::cmd {

struct BenchStoreFlags {
  std::string dir;
  std::string size = "2GiB";
  unsigned rounds = 3;
  bool json = false;
};

// Prints a table or JSON; leaves nothing behind. 0, or 2 after one line on stderr.
int run_bench_store(const BenchStoreFlags& flags);

// Adds `bench` with its inner verb `store`.
Verb add_bench(CLI::App& app);

}  // namespace kvd::cmd
