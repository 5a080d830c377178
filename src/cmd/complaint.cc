#include "cmd/complaint.h"

#include <cstdlib>

#include <fmt/format.h>

namespace kvd::cmd {

std::string in_one_line(std::string_view text) {
  std::string line;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (text[i] == '\n') {
      line += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 to U+009F
      line += fmt::format("\\x{:02x}", next);
      ++i;
    } else {
      line += text[i];
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
