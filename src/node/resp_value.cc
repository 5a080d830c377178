#include "node/resp_value.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace kvd::node {
namespace {

constexpr std::uint32_t kMagic = 0x4852'564B;  // bytes "KVRH"
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kHeadBytes = 32;

struct Fixed {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t key_bytes;
  std::uint64_t value_bytes;
  std::uint64_t body_hi;
  std::uint64_t body_lo;
};
static_assert(sizeof(Fixed) == kHeadBytes);

}  // namespace

std::size_t resp_value_offset(std::size_t key_bytes) noexcept { return kHeadBytes + key_bytes; }

bool resp_fits_head(std::size_t key_bytes, std::uint64_t value_bytes) noexcept {
  return value_bytes <= kPageBytes - kHeadBytes - key_bytes;
}

void encode_resp_head(MutableBytes page, Bytes key, std::uint64_t value_bytes, const Key& body) noexcept {
  KVD_CHECK(page.size() == kPageBytes && key.size() <= kRespKeyBytesMax);
  const Fixed fixed{kMagic, kVersion, static_cast<std::uint16_t>(key.size()), value_bytes, body.hi, body.lo};
  save(page.data(), fixed);
  std::ranges::copy(key, page.begin() + kHeadBytes);
  std::size_t used = resp_value_offset(key.size());
  if (body == Key{}) used += value_bytes;
  KVD_CHECK(used <= kPageBytes);
  std::memset(page.data() + used, 0, kPageBytes - used);
}

Result<RespHead> decode_resp_head(Bytes page) noexcept {
  if (page.size() != kPageBytes) return fail(Code::kCorrupt, "a head is one page");
  const auto fixed = load<Fixed>(page.data());
  if (fixed.magic != kMagic || fixed.version != kVersion) return fail(Code::kCorrupt, "not the head of a value");
  if (fixed.key_bytes > kRespKeyBytesMax || fixed.value_bytes > kRespValueBytesMax)
    return fail(Code::kCorrupt, "a head beyond the limits");
  RespHead head{page.subspan(kHeadBytes, fixed.key_bytes), fixed.value_bytes, {fixed.body_hi, fixed.body_lo}, {}};
  if (head.whole() != resp_fits_head(fixed.key_bytes, fixed.value_bytes))
    return fail(Code::kCorrupt, "a value in the wrong place");
  if (head.whole()) head.value = page.subspan(kHeadBytes + fixed.key_bytes, fixed.value_bytes);
  return head;
}

std::uint32_t resp_parts(std::uint64_t value_bytes) noexcept {
  return static_cast<std::uint32_t>((value_bytes + kRespPartBytesMax - 1) / kRespPartBytesMax);
}

std::uint64_t resp_part_bytes(std::uint64_t value_bytes, std::uint32_t i) noexcept {
  return std::min(kRespPartBytesMax, value_bytes - i * kRespPartBytesMax);
}

// Pages 1..8 as they are; then eighths: (9..16) << e.
std::uint32_t resp_size_of(std::uint64_t part_bytes) noexcept {
  KVD_CHECK(part_bytes > 0 && part_bytes <= kRespPartBytesMax);
  const auto pages = static_cast<std::uint32_t>((part_bytes + kPageBytes - 1) / kPageBytes);
  if (pages <= 8) return pages - 1;
  const auto shift = static_cast<std::uint32_t>(std::bit_width(pages - 1)) - 4;
  return 8 + shift * 8 + ((pages - 1) >> shift) - 8;
}

std::uint32_t resp_size_bytes(std::uint32_t size) noexcept {
  KVD_CHECK(size < kRespSizes);
  const std::uint32_t pages = size < 8 ? size + 1 : (9 + size % 8) << (size / 8 - 1);
  return pages * static_cast<std::uint32_t>(kPageBytes);
}

}  // namespace kvd::node
