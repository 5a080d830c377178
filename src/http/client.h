// One request over HTTP/1.1, on Boost.Beast, for tools that read a depot's metrics.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "base/time.h"
#include "http/message.h"

namespace kvd::http {

inline constexpr std::size_t kAnswerBytesMax = 4 << 20;  // a depot's metrics are 20 KiB

// GETs `path` from "HOST:PORT", on a connection of its own. Blocks, for `limit` at the most; any thread. Whatever
// status the answer has, it is returned. kInvalid: not an address; kTimeout; kIo: refused, cut off, no HTTP, or too
// long.
Result<Response> get(const std::string& address, std::string_view path, Duration limit);

}  // namespace kvd::http
