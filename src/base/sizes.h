// Sizes and durations as people type and read them: "8GiB", "500MB", "30s". Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/time.h"

namespace kvd {

// "4096", "64KiB", "8GiB", "500MB", "1.5TiB" (K M G T, with B or iB, and PB, PiB; case matters only for clarity) as
// bytes. A bare number is bytes. kInvalid: empty, negative, unknown unit, above 2^62.
Result<std::uint64_t> parse_size(std::string_view text);

// The shortest exact form with a binary unit, or one digit after the point: 8589934592 -> "8GiB".
std::string show_size(std::uint64_t bytes);

// "50us", "250ms", "30s", "5m", "1h"; a bare number is seconds. kInvalid as above.
Result<Duration> parse_duration(std::string_view text);

}  // namespace kvd
