// Whole files for verbs that print reports: read at once, and written so that the name shows up only when all is there.
#pragma once

#include <expected>
#include <string>

namespace kvd::cmd {

// The file's bytes, or one line that says why not.
std::expected<std::string, std::string> read_text(const std::string& path);

// Writes a file beside `path`, flushes it and renames it. Empty when done, else one line that says why not.
std::string write_text(const std::string& path, const std::string& text);

}  // namespace kvd::cmd
