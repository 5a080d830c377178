// The verb `kvdepot top`: a live view of a depot, from its metrics.
#pragma once

#include <cstdint>
#include <string>

#include "cmd/verb.h"

namespace kvd::cmd {

struct TopFlags {
  std::string address = "127.0.0.1:7071";
  std::string interval = "2s";
  std::uint64_t count = 0;  // views until it ends; 0 = until it is interrupted
  bool json = false;
};

// 0; 1 when the depot does not answer at the beginning; 2 when the flags are wrong.
int run_top(const TopFlags& flags);

Verb add_top(CLI::App& app);

}  // namespace kvd::cmd
