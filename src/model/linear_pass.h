// A pass of an engine in whole picoseconds, as a sum of products: the step model of fleets, in which the time of n
// equal decode passes is known in closed form, exactly, so that passes taken at once end at the same picosecond as
// passes taken one by one. Picoseconds in 64 bits reach 106 days.
#pragma once

#include <cmath>
#include <cstdint>

namespace kvd::model {

using Picoseconds = std::int64_t;
inline constexpr double kPicosecondsPerSecond = 1e12;
inline Picoseconds picoseconds(double seconds) { return std::llround(seconds * kPicosecondsPerSecond); }

struct LinearPass {
  Picoseconds base = 0;     // launches, and reading the weights once
  Picoseconds token = 0;    // a prompt token's matrices
  Picoseconds pair = 0;     // a (query, key) pair of a prompt's attention
  Picoseconds seq = 0;      // a sequence that decodes
  Picoseconds context = 0;  // reading a cached token's KV for a decode

  // `n` passes of `decodes` sequences; `context_tokens` are cached at the first, `decodes` more at each of the next.
  [[nodiscard]] constexpr Picoseconds decode_run(std::int64_t n, std::int64_t decodes,
                                                 std::int64_t context_tokens) const noexcept {
    return n * (base + seq * decodes + context * context_tokens) + context * decodes * (n * (n - 1) / 2);
  }
  [[nodiscard]] constexpr Picoseconds pass(std::int64_t prefill_tokens, std::int64_t pairs, std::int64_t decodes,
                                           std::int64_t context_tokens) const noexcept {
    return decode_run(1, decodes, context_tokens) + token * prefill_tokens + pair * pairs;
  }
};

}  // namespace kvd::model
