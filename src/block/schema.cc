#include "block/schema.h"

#include <xxhash.h>

#include <algorithm>

namespace kvd::block {
namespace {

constexpr std::uint64_t kSeedSchema = 0x6B76'642D'7363'6865;  // "kvd-sche"
constexpr std::size_t kOrderBytesMax = 64;
constexpr std::size_t kTenantBytesMax = 64;
constexpr std::size_t kFingerprintBytesMax = 128;

}  // namespace

Status check_schema(const GroupSchema& schema) noexcept {
  if (schema.layers == 0 || schema.layers > kLayersMax) return fail(Code::kInvalid, "schema: layers must be 1..400");
  if (schema.slab_bytes == 0) return fail(Code::kInvalid, "schema: slab_bytes must be positive");
  if (schema.parts == 0 || schema.slab_bytes % schema.parts != 0)
    return fail(Code::kInvalid, "schema: slab_bytes must be a multiple of parts");
  if (schema.block_tokens == 0) return fail(Code::kInvalid, "schema: block_tokens must be positive");
  if (schema.order.size() > kOrderBytesMax) return fail(Code::kInvalid, "schema: order is longer than 64 bytes");
  if (schema.rule > HitRule::kLast) return fail(Code::kInvalid, "schema: unknown hit rule");
  if (schema.rule == HitRule::kTrailing && schema.hit_blocks == 0)
    return fail(Code::kInvalid, "schema: a trailing rule needs hit_blocks");
  if (shape_of(schema, true).record_bytes() > kRecordBytesMax)
    return fail(Code::kInvalid, "schema: a record with its table is larger than 64 MiB");
  return {};
}

Status check_namespace(const Namespace& ns) noexcept {
  if (ns.tenant.empty() || ns.tenant.size() > kTenantBytesMax)
    return fail(Code::kInvalid, "namespace: tenant must have 1..64 bytes");
  if (ns.fingerprint.empty() || ns.fingerprint.size() > kFingerprintBytesMax)
    return fail(Code::kInvalid, "namespace: fingerprint must have 1..128 bytes");
  if (ns.groups.empty() || ns.groups.size() > kGroupsMax)
    return fail(Code::kInvalid, "namespace: 1..16 groups are needed");
  for (std::size_t i = 0; i < ns.groups.size(); ++i) {
    if (auto checked = check_schema(ns.groups[i]); !checked) return checked;
    for (std::size_t j = 0; j < i; ++j)
      if (ns.groups[i].group == ns.groups[j].group) return fail(Code::kInvalid, "namespace: a group appears twice");
  }
  return {};
}

std::uint64_t hash_schema(const GroupSchema& schema) noexcept {
  struct {
    std::uint32_t group, layers, slab_bytes, parts, block_tokens, rule, hit_blocks, order_bytes;
    char order[kOrderBytesMax];
  } packed{schema.group,
           schema.layers,
           schema.slab_bytes,
           schema.parts,
           schema.block_tokens,
           static_cast<std::uint32_t>(schema.rule),
           schema.hit_blocks,
           static_cast<std::uint32_t>(schema.order.size()),
           {}};
  std::copy_n(schema.order.data(), std::min(schema.order.size(), kOrderBytesMax), packed.order);
  return XXH3_64bits_withSeed(&packed, sizeof packed, kSeedSchema);
}

namespace {

RecordShape without_hash(const GroupSchema& schema, bool foreign) noexcept {
  RecordShape shape;
  shape.layers = schema.layers;
  shape.slab_bytes = schema.slab_bytes;
  shape.slab_stride = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(align_up(schema.slab_bytes, kPageBytes), UINT32_MAX - kPageBytes + 1));
  shape.table_bytes = schema.layers == 1 && !foreign ? 0 : static_cast<std::uint32_t>(kPageBytes);
  return shape;
}

}  // namespace

RecordShape shape_of(const GroupSchema& schema, bool foreign) noexcept {
  RecordShape shape = without_hash(schema, foreign);
  shape.schema_hash = hash_schema(schema);
  return shape;
}

std::size_t record_bytes_of(const GroupSchema& schema, bool foreign) noexcept {
  return without_hash(schema, foreign).record_bytes();
}

}  // namespace kvd::block
