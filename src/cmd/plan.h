// The verb `kvdepot plan`: its flags, and running it. One object per command line.
#pragma once

#include <string>

#include "cmd/plan_options.h"

namespace CLI {
class App;
}

namespace kvd::cmd {

class PlanVerb {
 public:
  // Adds `plan` with its flags and its inner verbs `talk` and `catalogue` to `program`. Both outlive the parsing.
  explicit PlanVerb(CLI::App& program);

  [[nodiscard]] bool chosen() const;
  // What was asked for, to standard output or a file. 0, or 2 after one line on standard error.
  [[nodiscard]] int run() const;

 private:
  [[nodiscard]] OrComplaint<std::string> plan() const;
  [[nodiscard]] OrComplaint<std::string> talk() const;
  [[nodiscard]] OrComplaint<std::string> list() const;

  PlanFlags flags_;
  unsigned seeds_ = 10;  // of the talk's simulations
  CLI::App* plan_ = nullptr;
  CLI::App* talk_ = nullptr;
  CLI::App* list_ = nullptr;
};

}  // namespace kvd::cmd
