// Sizes as people read them. Pure; what they type is read by base/sizes.h.
#pragma once

#include <cstdint>
#include <string>

namespace kvd::cmd {

// The shortest exact form with a binary unit, or one digit after the point: 8589934592 -> "8GiB".
std::string show_size(std::uint64_t bytes);

}  // namespace kvd::cmd
