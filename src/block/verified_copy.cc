#include "block/verified_copy.h"

#include <algorithm>

#include "base/check.h"
#include "block/checksum.h"

namespace kvd::block {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{16} << 10;

}  // namespace

std::uint64_t copy_and_hash(std::uint64_t record_seed, std::uint32_t layer, Bytes from, MutableBytes to) noexcept {
  KVD_CHECK(from.size() == to.size());
  SlabHasher hasher(record_seed, layer, from.size());
  for (std::size_t at = 0; at < from.size(); at += kBlockBytes) {
    const std::size_t bytes = std::min(kBlockBytes, from.size() - at);
    std::memcpy(to.data() + at, from.data() + at, bytes);
    hasher.add(Bytes(to).subspan(at, bytes));
  }
  return hasher.finish();
}

}  // namespace kvd::block
