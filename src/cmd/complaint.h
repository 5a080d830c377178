// What verbs say when the input has to be corrected.
#pragma once

#include <string>

namespace kvd::cmd {

// Exit status of a simulation whose own checks failed.
inline constexpr int kBroken = 1;

// One line on stderr; returns the exit status for input that has to be corrected, 2.
int complain(const std::string& line);

}  // namespace kvd::cmd
