// The verb `kvdepot bench net`: what a client gets from a depot over the way that lies between them. Its flags, and
// running it.
#pragma once

#include <string>

#include "cmd/verb.h"

namespace kvd::cmd {

struct BenchNetFlags {
  std::string depot;
  std::string size = "64MiB";
  std::string time = "1s";
  unsigned rounds = 3;
  bool shared_memory = false;
  std::string token_file;
  std::string tls_ca, tls_cert, tls_key, tls_server_name;
  std::string tenant = "default";
  bool json = false;
};

// Prints a table or JSON; removes from the depot what it has stored. 0; 1 when the depot does not answer or fails; 2
// when the flags are wrong.
int run_bench_net(const BenchNetFlags& flags);

// Adds `net` to the verb `bench`.
Verb add_bench_net(CLI::App& bench);

}  // namespace kvd::cmd
