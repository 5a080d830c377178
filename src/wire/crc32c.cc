#include "wire/crc32c.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

#include <array>

namespace kvd::wire {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reflected

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][i] = crc;
  }
  for (std::size_t t = 1; t < 8; ++t) {
    for (std::size_t i = 0; i < 256; ++i) {
      const std::uint32_t before = tables[t - 1][i];
      tables[t][i] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

#if defined(__x86_64__)

const bool kHasInstruction = __builtin_cpu_supports("sse4.2") != 0;

[[gnu::target("sse4.2")]] std::uint32_t by_instruction(Bytes bytes, std::uint32_t before) noexcept {
  std::uint64_t crc = ~before;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) crc = _mm_crc32_u64(crc, load<std::uint64_t>(at));
  auto rest = static_cast<std::uint32_t>(crc);
  for (; left > 0; --left, ++at) rest = _mm_crc32_u8(rest, std::to_integer<std::uint8_t>(*at));
  return ~rest;
}

#endif

}  // namespace

std::uint32_t crc32c(Bytes bytes, std::uint32_t before) noexcept {
#if defined(__x86_64__)
  if (kHasInstruction) return by_instruction(bytes, before);
#endif
  return crc32c_by_tables(bytes, before);
}

std::uint32_t crc32c_by_tables(Bytes bytes, std::uint32_t before) noexcept {
  std::uint32_t crc = ~before;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    const std::uint64_t word = load<std::uint64_t>(at) ^ crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= kTables[7 - i][(word >> (8 * i)) & 0xFF];
  }
  for (; left > 0; --left, ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ std::to_integer<std::uint32_t>(*at)) & 0xFF];
  return ~crc;
}

}  // namespace kvd::wire
