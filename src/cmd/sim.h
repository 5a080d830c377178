// The verb `kvdepot sim`: reads its flags and files, runs the simulator, prints or writes what came out. Results appear
// under their name only when they are complete.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace kvd::cmd {

// Adds `sim` and its own verbs to `app`. The result runs the one that was chosen, if any, and returns its exit status:
// 0, or 2 for input that has to be corrected. Call it after parsing; `app` must still exist.
std::function<int()> add_sim(CLI::App& app);

}  // namespace kvd::cmd
