#include "cmd/sizes.h"

#include <array>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

namespace kvd::cmd {

std::string show_size(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kNames{"B", "KiB", "MiB", "GiB", "TiB"};
  constexpr double kKibi = 1024.0;
  std::size_t unit = 0;
  auto value = static_cast<double>(bytes);
  while (value >= kKibi && unit + 1 < kNames.size()) {
    value /= kKibi;
    ++unit;
  }
  const bool whole = value == std::floor(value);
  return whole ? fmt::format("{:.0f}{}", value, kNames[unit]) : fmt::format("{:.1f}{}", value, kNames[unit]);
}

}  // namespace kvd::cmd
