#include "cmd/complaint.h"

#include <fmt/format.h>

namespace kvd::cmd {

int complain(const std::string& line) {
  fmt::print(stderr, "kvdepot: error: {}\n", line);
  return 2;
}

}  // namespace kvd::cmd
