#include "block/verified_copy.h"

#include <algorithm>

#include "base/check.h"
#include "block/checksum.h"

namespace kvd::block {
namespace {

// What the second-level cache (1 to 2 MiB) holds with its copy and some to spare. A slab up to this is hashed in one
// call, which is faster than a hash that is carried on from block to block.
constexpr std::size_t kBlockBytes = std::size_t{256} << 10;

}  // namespace

std::uint64_t copy_and_hash(std::uint64_t record_seed, std::uint32_t layer, Bytes from, MutableBytes to) noexcept {
  KVD_CHECK(from.size() == to.size());
  if (from.size() <= kBlockBytes) {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
    return slab_checksum(record_seed, layer, to);
  }
  SlabHasher hasher(record_seed, layer, from.size());
  for (std::size_t at = 0; at < from.size(); at += kBlockBytes) {
    const std::size_t bytes = std::min(kBlockBytes, from.size() - at);
    std::memcpy(to.data() + at, from.data() + at, bytes);
    hasher.add(Bytes(to).subspan(at, bytes));
  }
  return hasher.finish();
}

}  // namespace kvd::block
