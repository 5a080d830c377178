// The `kvdepot` program.
#include <exception>

#include "cmd/complaint.h"
#include "cmd/program.h"

int main(int argc, char** argv) {
  try {
    return kvd::cmd::run_program(argc, argv);
  } catch (const std::exception& error) {  // out of memory, or a bug of a library
    return kvd::cmd::report_failure(error.what());
  }
}
