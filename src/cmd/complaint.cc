#include "cmd/complaint.h"

#include <cstdlib>

#include <fmt/format.h>

namespace kvd::cmd {

int complain(const std::string& line) {
  fmt::print(stderr, "kvdepot: error: {}\n", line);
  return 2;
}

int report_failure(const std::string& line) {
  complain(line);
  return EXIT_FAILURE;
}

}  // namespace kvd::cmd
