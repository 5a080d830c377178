// The file that a client's token is in. Blocks for one small read; any thread.
#pragma once

#include <string>

#include "base/result.h"

namespace kvd::client {

// Its text without white space around it. kInvalid: others than its owner could read it, it is somebody else's or no
// plain file, or it does not hold one word of at most 256 printable characters. kIo: it cannot be read.
Result<std::string> read_token_file(const std::string& path);

}  // namespace kvd::client
