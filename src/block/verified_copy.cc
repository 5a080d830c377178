#include "block/verified_copy.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>

#include "base/check.h"
#include "block/prefetch.h"

namespace kvd::block {
namespace {

constexpr std::size_t kBlockBytes = kAheadStep;  // with its copy an eighth of a first-level cache
constexpr std::size_t kLineBytes = 64;

#if defined(__x86_64__)

__m128i* at(std::byte* to) noexcept { return reinterpret_cast<__m128i*>(to); }
const __m128i* at(const std::byte* from) noexcept { return reinterpret_cast<const __m128i*>(from); }

void copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  for (; bytes >= kLineBytes; to += kLineBytes, from += kLineBytes, bytes -= kLineBytes) {
    const __m128i a = _mm_loadu_si128(at(from)), b = _mm_loadu_si128(at(from + 16));
    const __m128i c = _mm_loadu_si128(at(from + 32)), d = _mm_loadu_si128(at(from + 48));
    _mm_storeu_si128(at(to), a);
    _mm_storeu_si128(at(to + 16), b);
    _mm_storeu_si128(at(to + 32), c);
    _mm_storeu_si128(at(to + 48), d);
  }
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// Whole lines go to memory without being read. Needs finish_past_cache() before another thread is told of them.
void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  const std::size_t head = std::min(bytes, (0 - reinterpret_cast<std::uintptr_t>(to)) % kLineBytes);
  if (head > 0) std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= kLineBytes; to += kLineBytes, from += kLineBytes, bytes -= kLineBytes) {
    const __m128i a = _mm_loadu_si128(at(from)), b = _mm_loadu_si128(at(from + 16));
    const __m128i c = _mm_loadu_si128(at(from + 32)), d = _mm_loadu_si128(at(from + 48));
    _mm_stream_si128(at(to), a);
    _mm_stream_si128(at(to + 16), b);
    _mm_stream_si128(at(to + 32), c);
    _mm_stream_si128(at(to + 48), d);
  }
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void finish_past_cache() noexcept { _mm_sfence(); }

#else

void copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept { std::memcpy(to, from, bytes); }
void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes) noexcept { std::memcpy(to, from, bytes); }
void finish_past_cache() noexcept {}

#endif

}  // namespace

void copy_and_hash(SlabHasher& hasher, Bytes from, MutableBytes to, bool past_cache) noexcept {
  KVD_CHECK(from.size() == to.size());
  past_cache = past_cache && from.size() >= kBlockBytes;  // many small pieces would wait for memory each
  const bool ahead = gains_by_fetching();
  alignas(kLineBytes) std::array<std::byte, kBlockBytes> block;
  for (std::size_t done = 0; done < from.size();) {
    const std::size_t bytes = std::min(kBlockBytes, from.size() - done);
    if (ahead) fetch_ahead(from, done + kAheadBytes);
    copy(block.data(), from.data() + done, bytes);
    hasher.add(Bytes(block).first(bytes));
    (past_cache ? copy_past_cache : copy)(to.data() + done, block.data(), bytes);
    done += bytes;
  }
  if (past_cache) finish_past_cache();
}

std::uint64_t copy_and_hash(std::uint64_t record_seed, std::uint32_t layer, Bytes from, MutableBytes to,
                            bool past_cache) noexcept {
  SlabHasher hasher(record_seed, layer, from.size());
  copy_and_hash(hasher, from, to, past_cache);
  return hasher.finish();
}

}  // namespace kvd::block
