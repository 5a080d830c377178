// The whole of `kvdepot`: reads the command line and runs a verb.
#pragma once

namespace kvd::cmd {

// Returns the exit status: 0, 1 when the verb failed, 2 for words it does not know. Throws std::bad_alloc, and what
// libraries throw by a bug.
int run_program(int argc, char** argv);

}  // namespace kvd::cmd
