// The binary's log: the Log interface of src/base on spdlog, to stderr, coloured on a terminal unless NO_COLOR is set.
#pragma once

#include <memory>
#include <string_view>

#include "base/log.h"
#include "base/result.h"

namespace kvd::cmd {

// "debug", "info", "warn" or "error". kInvalid otherwise.
Result<Level> parse_level(std::string_view text);

// Lines below `level` are dropped. Thread-safe; one line per call, flushed.
std::unique_ptr<Log> make_stderr_log(Level level, bool colour);

}  // namespace kvd::cmd
