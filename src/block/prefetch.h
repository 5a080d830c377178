// Asking for memory before it is read. Processors read ahead by themselves within a page of 4 KiB; some stop at its
// end, and whoever goes through cold memory page by page waits there. Pure, any thread.
//
// GB/s of cold memory in slabs of 64 KiB, hashed, copied and hashed, without and two pages ahead: on a Xeon (family 6,
// model 207) 8.6 and 12.0, 5.3 and 7.8; on an EPYC of family 26 18.8 and 17.6, 11.0 and 10.6; on one of family 25
// (model 17) 17.8 and 11.8, 10.3 and 7.7. So it is for processors of Intel's, and left to the others themselves.
#pragma once

#include <algorithm>

#include "base/bytes.h"

namespace kvd::block {

inline constexpr std::size_t kAheadStep = 4096;  // a page, hashed or copied at once
inline constexpr std::size_t kAheadBytes = 2 * kAheadStep;
// Shorter pieces are read as they are: there is no page to be ahead of.
inline constexpr std::size_t kAheadWorth = 4 * kAheadStep;

// Whether this processor is one that gains by it.
[[nodiscard]] bool gains_by_fetching() noexcept;

// Asks for bytes [from, from + kAheadStep) of `piece`, as far as it goes. Inlined by force: GCC 12 takes a function
// that only asks for memory for one without effect, and at -O2 leaves out the calls.
[[gnu::always_inline]] inline void fetch_ahead(Bytes piece, std::size_t from) noexcept {
  constexpr std::size_t kLine = 64;
  const std::size_t end = std::min(piece.size(), from + kAheadStep);
  for (std::size_t at = from; at < end; at += kLine) __builtin_prefetch(piece.data() + at);
}

}  // namespace kvd::block
