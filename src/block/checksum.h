// The end-to-end guard: one keyed checksum per slab, made where bytes are produced, verified where they are consumed.
// Pure, any thread. XXH3-64 runs at about 19 GB/s on one core from memory (storage.md 1 of the design notes).
//
// The seed folds in key, shard, group, schema, layer and length, so valid bytes of another object, layer or geometry
// fail. A record's checksum is the hash of its table of slab checksums; of a one-slab native record, its slab's.
// Guards against accidents, not forgery.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "block/key.h"
#include "block/schema.h"

namespace kvd::block {

// The part of a slab's seed that all layers of a record share. Compute once per record.
std::uint64_t record_seed(const RecordId& id, const RecordShape& shape) noexcept;

// Checksum of one slab's payload (shape.slab_bytes bytes, without padding).
std::uint64_t slab_checksum(std::uint64_t record_seed, std::uint32_t layer, Bytes slab) noexcept;

// The same over a slab that lies in pieces: add() them in order, then finish().
class SlabHasher {
 public:
  SlabHasher(std::uint64_t record_seed, std::uint32_t layer, std::size_t slab_bytes) noexcept;
  ~SlabHasher();
  SlabHasher(const SlabHasher&) = delete;
  SlabHasher& operator=(const SlabHasher&) = delete;
  void add(Bytes piece) noexcept;
  [[nodiscard]] std::uint64_t finish() const noexcept;

 private:
  alignas(64) std::byte state_[576];  // XXH3_state_t, kept out of this header
};

// Checksum of a table: what a descriptor and the index carry for a record with a table.
std::uint64_t table_checksum(std::uint64_t record_seed, std::span<const std::uint64_t> slabs, Bytes foreign) noexcept;

// The table page: layer count, foreign key, slab checksums, own checksum. encode requires page.size() == kPageBytes.
void encode_table(MutableBytes page, std::uint64_t record_seed, std::span<const std::uint64_t> slabs,
                  Bytes foreign) noexcept;
// A decoded table; spans point into the page.
struct Table {
  std::span<const std::uint64_t> slabs;
  Bytes foreign;
  std::uint64_t checksum = 0;  // equals table_checksum() of its content, verified
};
// kCorrupt when the page is not a table of this record (wrong checksum, layer count, key).
Result<Table> decode_table(Bytes page, std::uint64_t record_seed, const RecordShape& shape) noexcept;

}  // namespace kvd::block
