// How a value that a Redis client stored lies in records (docs/formats/resp-values.md). Pure, any thread.
//
// Each key has a head: a record of one page under the hash of the key, replaced by each SET. It holds the whole key,
// which is compared at a GET, and the value, where both fit. A longer value lies in parts of at most 4 MiB, records of
// their own under keys that are never used again, which the head names. Records have fixed sizes, so a part takes the
// smallest of 64 sizes that holds it: eight to each power of two, at most an eighth of it unused.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"
#include "kvdepot/types.h"

namespace kvd::node {

inline constexpr std::size_t kRespKeyBytesMax = 1024;  // LMCache's have some 200
inline constexpr std::uint64_t kRespValueBytesMax = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kRespPartBytesMax = std::uint64_t{4} << 20;  // fits every segment; a turn of the loop
inline constexpr std::size_t kRespPartsMax = kRespValueBytesMax / kRespPartBytesMax;
inline constexpr std::size_t kRespSizes = 64;

struct RespHead {
  Bytes key;
  std::uint64_t value_bytes = 0;
  Key body;     // of the first part; part i has lo + i. Key{} when the value is here
  Bytes value;  // when it is here
  [[nodiscard]] bool whole() const noexcept { return body == Key{}; }
};

// Where a value begins in the head of a key of so many bytes, and whether one of `value_bytes` fits there.
std::size_t resp_value_offset(std::size_t key_bytes) noexcept;
bool resp_fits_head(std::size_t key_bytes, std::uint64_t value_bytes) noexcept;

// Writes a head around the value that is in its place already (`body` == Key{}), or one that names parts.
void encode_resp_head(MutableBytes page, Bytes key, std::uint64_t value_bytes, const Key& body) noexcept;
// kCorrupt when the page is not a head. Spans point into the page.
Result<RespHead> decode_resp_head(Bytes page) noexcept;

// How many parts a value has, and how many bytes of it are in part `i`.
std::uint32_t resp_parts(std::uint64_t value_bytes) noexcept;
std::uint64_t resp_part_bytes(std::uint64_t value_bytes, std::uint32_t i) noexcept;
// The size, 0..63, of a part of 1..kRespPartBytesMax bytes; and the bytes of a record of that size.
std::uint32_t resp_size_of(std::uint64_t part_bytes) noexcept;
std::uint32_t resp_size_bytes(std::uint32_t size) noexcept;

}  // namespace kvd::node
