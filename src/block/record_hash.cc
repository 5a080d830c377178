// The hashes of record ids, on their own because they are made for every key of every lookup: with XXH3 inlined a hash
// of 24 bytes takes a third of the time of a call into the library. This file is kept out of unity builds, in which the
// others would get the inlined code, too.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "block/key.h"

namespace kvd::block {
namespace {

constexpr std::uint64_t kSeedRecord = 0x6B76'642D'7265'636F;  // "kvd-reco", see key.cc

}  // namespace

std::uint64_t hash_record(const RecordId& id) noexcept {
  const std::uint64_t packed[3] = {id.key.hi, id.key.lo, (std::uint64_t{id.shard} << 16) | id.group};
  return XXH3_64bits_withSeed(packed, sizeof packed, kSeedRecord);
}

std::uint64_t hash_record(const NamespaceHash& ns, const RecordId& id) noexcept {
  const std::uint64_t parts[3] = {ns.hi, ns.lo, hash_record(id)};
  return XXH3_64bits(parts, sizeof parts);
}

}  // namespace kvd::block
