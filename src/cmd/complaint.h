// What verbs say when they cannot do what they were asked.
#pragma once

#include <string>

namespace kvd::cmd {

// Exit status of a simulation whose own checks failed.
inline constexpr int kBroken = 1;

// One line on stderr; returns the exit status for input that has to be corrected, 2.
int complain(const std::string& line);

// The same where nothing is wrong with the input: the exit status for that, 1.
int report_failure(const std::string& line);

}  // namespace kvd::cmd
