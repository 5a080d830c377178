// Errors as people read them: with the system's words instead of its numbers. Pure, any thread.
#pragma once

#include <string>

#include "base/result.h"

namespace kvd {

// The system's words for an errno: "Permission denied".
std::string error_text(int sys_errno);

// What failed, and the system's words where it gave a number: "open the disk's file: Permission denied".
std::string error_text(const Error& error);

}  // namespace kvd
