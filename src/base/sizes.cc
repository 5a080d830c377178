#include "base/sizes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

namespace kvd {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr double kKibi = 1024.0;
constexpr std::array<Unit, 16> kSizeUnits{{{"", 1},
                                           {"B", 1},
                                           {"KB", 1e3},
                                           {"MB", 1e6},
                                           {"GB", 1e9},
                                           {"TB", 1e12},
                                           {"PB", 1e15},
                                           {"KiB", kKibi},
                                           {"MiB", kKibi* kKibi},
                                           {"GiB", kKibi* kKibi* kKibi},
                                           {"TiB", kKibi* kKibi* kKibi* kKibi},
                                           {"PiB", 0x1p50},
                                           {"K", kKibi},
                                           {"M", kKibi* kKibi},
                                           {"G", kKibi* kKibi* kKibi},
                                           {"T", kKibi* kKibi* kKibi* kKibi}}};
constexpr std::array<Unit, 6> kTimeUnits{{{"", 1e9}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}}};
constexpr double kLimit = 4611686018427387904.0;  // 2^62: sums of two never overflow

bool same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
         });
}

template <std::size_t N>
Result<double> parse(std::string_view text, const std::array<Unit, N>& units, const char* complaint) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || !std::isfinite(number) || number < 0) return fail(Code::kInvalid, complaint);
  auto unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  for (const auto& known : units) {
    if (!same(known.name, unit)) continue;
    if (number * known.factor >= kLimit) return fail(Code::kInvalid, complaint);
    return number * known.factor;
  }
  return fail(Code::kInvalid, complaint);
}

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text) {
  const auto parsed = parse(text, kSizeUnits, "not a size: write e.g. 8GiB, 500MB or 4096");
  if (!parsed) return fail(parsed.error());
  return static_cast<std::uint64_t>(std::llround(*parsed));
}

std::string show_size(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kNames{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  auto value = static_cast<double>(bytes);
  while (value >= kKibi && unit + 1 < kNames.size()) {
    value /= kKibi;
    ++unit;
  }
  const int digits = value == std::floor(value) ? 0 : 1;
  std::array<char, 16> text;  // at most 16777216, which is 2^64 bytes in TiB
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, digits).ptr;
  return std::string(text.data(), end) + kNames[unit];
}

Result<Duration> parse_duration(std::string_view text) {
  const auto parsed = parse(text, kTimeUnits, "not a duration: write e.g. 250ms, 30s or 5m");
  if (!parsed) return fail(parsed.error());
  return Duration(std::llround(*parsed));
}

}  // namespace kvd
