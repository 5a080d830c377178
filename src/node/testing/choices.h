// Choices: the bytes of a fuzzer's input, one decision after the other; zeros behind its end. For fuzz targets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "base/bytes.h"

namespace kvd::node {

class Choices {
 public:
  explicit Choices(Bytes bytes) : left_(bytes) {}
  [[nodiscard]] bool end() const noexcept { return left_.empty(); }
  std::uint8_t byte() noexcept {
    if (left_.empty()) return 0;
    const auto value = std::to_integer<std::uint8_t>(left_.front());
    left_ = left_.subspan(1);
    return value;
  }
  std::size_t below(std::size_t n) noexcept { return byte() % n; }
  // Small, at the edge of something, or anything.
  std::uint64_t number() noexcept {
    static constexpr std::array<std::uint64_t, 12> kEdges = {
        0, 1, 2, 63, 255, 4096, 4097, 65535, 1U << 22, 0x7FFFFFFF, 0xFFFFFFFF, ~std::uint64_t{0}};
    const std::uint8_t kind = byte();
    if (kind < 128) return kind % 8;
    if (kind < 224) return kEdges[kind % kEdges.size()];
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }

 private:
  Bytes left_;
};

// Ends the process with `what`, as a fuzzer wants it, unless `holds`.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

}  // namespace kvd::node
