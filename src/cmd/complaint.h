// What verbs say when they cannot do what they were asked.
#pragma once

#include <string>
#include <string_view>

namespace kvd::cmd {

// Exit status of a simulation whose own checks failed.
inline constexpr int kBroken = 1;

// The text in one line that a terminal only shows: what users wrote is quoted in complaints, and may hold line ends and
// control characters, which become \n and \x1b. Pure.
std::string in_one_line(std::string_view text);

// One line on stderr; returns the exit status for input that has to be corrected, 2.
int complain(const std::string& line);

// The same where nothing is wrong with the input: the exit status for that, 1.
int report_failure(const std::string& line);

}  // namespace kvd::cmd
