#include "cmd/complaint.h"

#include <cstdlib>

#include <fmt/format.h>

namespace kvd::cmd {

std::string in_one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      line += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  return line;
}

int complain(const std::string& line) {
  fmt::print(stderr, "kvdepot: error: {}\n", in_one_line(line));
  return 2;
}

int report_failure(const std::string& line) {
  complain(line);
  return EXIT_FAILURE;
}

}  // namespace kvd::cmd
