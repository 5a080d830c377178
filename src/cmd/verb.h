// A verb of the program that was added to the command line: after parsing, whether it was chosen, and what runs it.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace kvd::cmd {

struct Verb {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

}  // namespace kvd::cmd
