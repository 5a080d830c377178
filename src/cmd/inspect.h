// The verbs `kvdepot inspect` and `kvdepot verify`: a store seen from outside, read-only. Their flags, and running
// them.
#pragma once

#include <string>
#include <vector>

#include "cmd/verb.h"

namespace kvd::cmd {

struct InspectFlags {
  std::string dir;
  std::vector<std::string> devices = {};  // where devices may be that are not where the store's list says
  std::string record;                     // 32 hexadecimal digits
  std::string foreign;                    // an engine's own key, in hexadecimal digits
  std::string out;                        // where the record's payload goes; "-" = standard output
  int shard = -1, group = -1;
  bool segments = false;
  bool json = false;
};

struct VerifyFlags {
  std::string dir;
  std::vector<std::string> devices = {};
  unsigned threads = 0;  // 0 = one per core
  bool json = false;
};

// Print on stdout, complain on stderr in one line. 0; verify: 1 when something is damaged; 2 when it could not be done,
// or not of all devices.
int run_inspect(const InspectFlags& flags);
int run_verify(const VerifyFlags& flags);

Verb add_inspect(CLI::App& app);
Verb add_verify(CLI::App& app);

}  // namespace kvd::cmd
