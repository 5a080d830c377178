// What every request of a trace must satisfy, whatever its format; shared by the readers of this room.
#pragma once

#include <optional>
#include <string>

#include "trace/trace.h"

namespace kvd::trace {

// What is wrong with `request`, which follows one that came at `before_s`; nothing when it is fine.
std::optional<std::string> request_fault(const Request& request, double before_s, const ReadOptions& options);

}  // namespace kvd::trace
