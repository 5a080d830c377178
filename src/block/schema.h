// Geometry of records: how many bytes a record, its table and its slabs take, in memory and on flash. Pure, any thread.
//
// A record image is the same in the pool and on flash: [table page][slab 0][slab 1]..., each slab starting on a page.
// A record of one slab with a native key has no table page (its checksum lives in the descriptor).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/result.h"
#include "kvdepot/types.h"

namespace kvd::block {

// Checks a schema against the format's limits (kLayersMax, kRecordBytesMax, ...). kInvalid says which limit.
Status check_schema(const GroupSchema& schema) noexcept;
// Checks a namespace: tenant and fingerprint lengths, 1..kGroupsMax schemas with distinct groups, each valid.
Status check_namespace(const Namespace& ns) noexcept;

// 64 bits of the whole geometry (every field): enters each slab's checksum, so bytes of another geometry fail.
std::uint64_t hash_schema(const GroupSchema& schema) noexcept;

// Sizes of a record with this schema. `foreign` = the key is a foreign key.
struct RecordShape {
  std::uint32_t layers = 0;
  std::uint32_t slab_bytes = 0;   // payload
  std::uint32_t slab_stride = 0;  // payload padded to pages
  std::uint32_t table_bytes = 0;  // 0 or one page
  std::uint64_t schema_hash = 0;
  [[nodiscard]] std::size_t record_bytes() const noexcept { return table_bytes + std::size_t{layers} * slab_stride; }
  [[nodiscard]] std::size_t slab_offset(std::uint32_t layer) const noexcept {
    return table_bytes + std::size_t{layer} * slab_stride;
  }
};
RecordShape shape_of(const GroupSchema& schema, bool foreign) noexcept;
// Its record_bytes() alone, which needs no hash of the schema.
std::size_t record_bytes_of(const GroupSchema& schema, bool foreign) noexcept;

}  // namespace kvd::block
