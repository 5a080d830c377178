#include "block/checksum.h"

#define XXH_STATIC_LINKING_ONLY  // complete state types; the library itself is linked dynamically
#include <xxhash.h>

#include <new>

#include "base/check.h"
#include "block/prefetch.h"

namespace kvd::block {
namespace {

constexpr std::uint64_t kSeedTable = 0x6B76'642D'7461'626C;  // "kvd-tabl"
constexpr std::uint32_t kTableMagic = 0x5442'564B;           // "KVBT"

// Table page: a fixed head, then `layers` u64 slab checksums, then the foreign key, zeros to the end of the page.
struct TableHead {
  std::uint32_t magic;
  std::uint16_t layers;
  std::uint16_t foreign_bytes;
  std::uint64_t checksum;
};
static_assert(sizeof(TableHead) == 16);
static_assert(sizeof(TableHead) + kLayersMax * 8 + kForeignKeyBytesMax <= kPageBytes);
static_assert(sizeof(XXH3_state_t) <= 576 && alignof(XXH3_state_t) <= 64);

std::uint64_t slab_seed(std::uint64_t record_seed, std::uint32_t layer, std::size_t bytes) noexcept {
  const std::uint64_t where[2] = {layer, bytes};
  return XXH3_64bits_withSeed(where, sizeof where, record_seed);
}

XXH3_state_t* state_of(std::byte* bytes) noexcept { return std::launder(reinterpret_cast<XXH3_state_t*>(bytes)); }

}  // namespace

std::uint64_t record_seed(const RecordId& id, const RecordShape& shape) noexcept {
  return XXH3_64bits_withSeed(&shape.schema_hash, sizeof shape.schema_hash, hash_record(id));
}

std::uint64_t slab_checksum(std::uint64_t record_seed, std::uint32_t layer, Bytes slab) noexcept {
  if (slab.size() < kAheadWorth || !gains_by_fetching())
    return XXH3_64bits_withSeed(slab.data(), slab.size(), slab_seed(record_seed, layer, slab.size()));
  SlabHasher hasher(record_seed, layer, slab.size());
  hasher.add(slab);
  return hasher.finish();
}

SlabHasher::SlabHasher(std::uint64_t record_seed, std::uint32_t layer, std::size_t slab_bytes) noexcept {
  auto* state = new (state_) XXH3_state_t;
  XXH3_INITSTATE(state);  // or a seed that happens to lie there would be taken for one whose secret is ready
  XXH3_64bits_reset_withSeed(state, slab_seed(record_seed, layer, slab_bytes));
}
SlabHasher::~SlabHasher() = default;
void SlabHasher::add(Bytes piece) noexcept {
  if (piece.size() < kAheadWorth || !gains_by_fetching()) {
    XXH3_64bits_update(state_of(state_), piece.data(), piece.size());
    return;
  }
  for (std::size_t done = 0; done < piece.size();) {
    const std::size_t bytes = std::min(kAheadStep, piece.size() - done);
    fetch_ahead(piece, done + kAheadBytes);
    XXH3_64bits_update(state_of(state_), piece.data() + done, bytes);
    done += bytes;
  }
}
std::uint64_t SlabHasher::finish() const noexcept {
  return XXH3_64bits_digest(std::launder(reinterpret_cast<const XXH3_state_t*>(state_)));
}

std::uint64_t table_checksum(std::uint64_t record_seed, std::span<const std::uint64_t> slabs, Bytes foreign) noexcept {
  const auto keyed = XXH3_64bits_withSeed(foreign.data(), foreign.size(), record_seed ^ kSeedTable);
  return XXH3_64bits_withSeed(slabs.data(), slabs.size_bytes(), keyed);
}

void encode_table(MutableBytes page, std::uint64_t record_seed, std::span<const std::uint64_t> slabs,
                  Bytes foreign) noexcept {
  KVD_CHECK(page.size() == kPageBytes && slabs.size() <= kLayersMax && foreign.size() <= kForeignKeyBytesMax);
  std::memset(page.data(), 0, page.size());
  const TableHead head{kTableMagic, static_cast<std::uint16_t>(slabs.size()),
                       static_cast<std::uint16_t>(foreign.size()), table_checksum(record_seed, slabs, foreign)};
  save(page.data(), head);
  if (!slabs.empty()) std::memcpy(page.data() + sizeof head, slabs.data(), slabs.size_bytes());
  if (!foreign.empty()) std::memcpy(page.data() + sizeof head + slabs.size_bytes(), foreign.data(), foreign.size());
}

Result<Table> decode_table(Bytes page, std::uint64_t record_seed, const RecordShape& shape) noexcept {
  if (page.size() != kPageBytes) return fail(Code::kCorrupt, "table page has the wrong size");
  const auto head = load<TableHead>(page.data());
  if (head.magic != kTableMagic || head.layers != shape.layers || head.foreign_bytes > kForeignKeyBytesMax)
    return fail(Code::kCorrupt, "table page is not this record's");
  const auto* slabs = reinterpret_cast<const std::uint64_t*>(page.data() + sizeof head);
  Table table;
  table.slabs = {slabs, head.layers};
  table.foreign = page.subspan(sizeof head + table.slabs.size_bytes(), head.foreign_bytes);
  table.checksum = table_checksum(record_seed, table.slabs, table.foreign);
  if (table.checksum != head.checksum) return fail(Code::kCorrupt, "table page fails its checksum");
  return table;
}

}  // namespace kvd::block
