// The `kvdepot` program.
#include <cstdlib>
#include <exception>

#include <fmt/format.h>

#include "cmd/program.h"

int main(int argc, char** argv) {
  try {
    return kvd::cmd::run_program(argc, argv);
  } catch (const std::exception& error) {  // out of memory, or a bug of a library
    fmt::print(stderr, "kvdepot: error: {}\n", error.what());
    return EXIT_FAILURE;
  }
}
