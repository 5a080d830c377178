// Sizes and durations as people type them: "8GiB", "500MB", "30s". Pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "base/time.h"

namespace kvd {

// "4096", "64KiB", "8GiB", "500MB", "1.5TiB" (K M G T, with B or iB, and PB, PiB; case matters only for clarity) as
// bytes. A bare number is bytes. kInvalid: empty, negative, unknown unit, above 2^62.
Result<std::uint64_t> parse_size(std::string_view text);

// "250ms", "30s", "5m", "1h"; a bare number is seconds. kInvalid as above.
Result<Duration> parse_duration(std::string_view text);

}  // namespace kvd
