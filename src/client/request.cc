#include "client/request.h"

#include <algorithm>

#include "block/checksum.h"
#include "client/put_flow.h"

namespace kvd::client {
namespace {

using Numbers = std::span<const std::uint16_t>;
using Entry = NamespaceTable::SharedEntry;

// What every request has: a known namespace (`entry` or null), keys within the limits, deadlines. The time is set by
// who submits it.
Result<OpRequest> start(OpKind kind, const Entry& entry, const KeyList& keys, const Deadline& deadline) {
  if (entry == nullptr) return fail(Code::kInvalid, "no such namespace");
  if (keys.key_bytes == 0 || keys.key_bytes > kForeignKeyBytesMax) {
    return fail(Code::kInvalid, "a key has 1 to 256 bytes");
  }
  if (keys.native && keys.key_bytes != sizeof(Key)) return fail(Code::kInvalid, "a native key has 16 bytes");
  if (keys.bytes.empty() || keys.bytes.size() % keys.key_bytes != 0) {
    return fail(Code::kInvalid, "the keys are not a whole number of keys");
  }
  if (keys.count() > kKeysPerRequestMax) return fail(Code::kInvalid, "a request has at most 4096 keys");
  OpRequest op;
  op.kind = kind;
  op.ns = entry->id;
  op.key_bytes.assign(keys.bytes.begin(), keys.bytes.end());
  op.keys = {.bytes = op.key_bytes, .key_bytes = keys.key_bytes, .native = keys.native};
  op.deadline = deadline;
  return op;
}

Status set_parts(OpRequest& op, const NamespaceTable::Entry& entry, Numbers shards, Numbers groups) {
  if (shards.empty() || shards.size() > kShardsMax) return fail(Code::kInvalid, "a request names 1 to 64 shards");
  if (groups.empty() || groups.size() > kGroupsMax) return fail(Code::kInvalid, "a request names 1 to 16 groups");
  for (const std::uint16_t group : groups) {
    if (entry.schema(group) == nullptr) {
      return fail(Code::kInvalid, "the namespace has no such group");
    }
  }
  if (op.keys.count() % groups.size() != 0) return fail(Code::kInvalid, "every group needs the same number of keys");
  op.shards.assign(shards.begin(), shards.end());
  op.groups.assign(groups.begin(), groups.end());
  return {};
}

// What get, borrow and put have: one shard and group, and a stretch of layers, whose schema is returned.
Result<const GroupSchema*> set_slabs(OpRequest& op, const NamespaceTable::Entry& entry, std::uint16_t shard,
                                     std::uint16_t group) {
  if (Status set = set_parts(op, entry, Numbers(&shard, 1), Numbers(&group, 1)); !set) return fail(set.error());
  const GroupSchema& schema = *entry.schema(group);
  if (op.layer_first >= schema.layers) return fail(Code::kInvalid, "the schema has no such layer");
  const auto layers_left = static_cast<std::uint16_t>(schema.layers - op.layer_first);
  if (op.layer_count == 0) op.layer_count = layers_left;
  if (op.layer_count > layers_left) return fail(Code::kInvalid, "the schema has no such layer");
  const block::RecordShape shape = block::shape_of(schema, !op.keys.native);
  op.seeds.reserve(op.keys.count());
  for (std::size_t i = 0; i < op.keys.count(); ++i) {
    const block::RecordId id{.key = block::key_at(entry.hash, op.keys, i), .shard = shard, .group = group};
    op.seeds.push_back(block::record_seed(id, shape));
  }
  return &schema;
}

// The same with a place in the caller's memory for every slab.
Status set_body(OpRequest& op, const NamespaceTable::Entry& entry, RegionTable& regions, std::uint16_t shard,
                std::uint16_t group, const Placement& placement) {
  const auto schema = set_slabs(op, entry, shard, group);
  if (!schema) return fail(schema.error());
  auto use = regions.use(placement.region);
  if (!use) return fail(use.error());
  op.region = std::move(*use);
  auto layout = Layout::make(op.region.bytes(), placement, op.layer_count, op.keys.count(), (*schema)->slab_bytes);
  if (!layout) return fail(layout.error());
  op.layout = std::move(*layout);
  return {};
}

}  // namespace

Result<OpRequest> make_match(const NamespaceTable& namespaces, const MatchRequest& request) {
  const Entry entry = namespaces.find(request.ns);
  auto op = start(OpKind::kMatch, entry, request.keys, request.deadline);
  if (!op) return op;
  if (Status set = set_parts(*op, *entry, request.shards, request.groups); !set) return fail(set.error());
  op->lease_ms = request.lease_ms;
  op->promote = request.promote;
  return op;
}

Result<OpRequest> make_get(const NamespaceTable& namespaces, RegionTable& regions, const GetRequest& request) {
  const Entry entry = namespaces.find(request.ns);
  auto op = start(OpKind::kGet, entry, request.keys, request.deadline);
  if (!op) return op;
  op->layer_first = request.layer_first;
  op->layer_count = request.layer_count;
  op->stop_at_first_failure = request.stop_at_first_failure;
  Status set = set_body(*op, *entry, regions, request.shard, request.group, request.dest);
  if (!set) return fail(set.error());
  return op;
}

Result<OpRequest> make_borrow(const NamespaceTable& namespaces, const BorrowRequest& request) {
  const Entry entry = namespaces.find(request.ns);
  auto op = start(OpKind::kGet, entry, request.keys, request.deadline);
  if (!op) return op;
  if (request.hold <= std::chrono::milliseconds(0) || request.hold > kHoldMax) {
    return fail(Code::kInvalid, "hold must be 1 ms to 10 minutes");
  }
  op->borrow = true;
  op->verify = request.verify;
  op->hold = request.hold;
  op->layer_first = request.layer_first;
  op->layer_count = request.layer_count;
  op->stop_at_first_failure = request.stop_at_first_failure;
  const auto schema = set_slabs(*op, *entry, request.shard, request.group);
  if (!schema) return fail(schema.error());
  op->layout = Layout::packed(nullptr, op->layer_count, op->keys.count(), (*schema)->slab_bytes);
  return op;
}

Result<OpRequest> make_put(const NamespaceTable& namespaces, RegionTable& regions, const PutRequest& request) {
  const Entry entry = namespaces.find(request.ns);
  auto op = start(OpKind::kPut, entry, request.keys, request.deadline);
  if (!op) return op;
  op->ack = request.ack;
  op->whole = request.whole;
  Status set = set_body(*op, *entry, regions, request.shard, request.group, request.src);
  if (!set) return fail(set.error());
  if (op->layout.pieces() * op->keys.count() > kPiecesPerLayerMax) {
    return fail(Code::kInvalid, "a layer of a put has more than a million pieces of memory");
  }
  return op;
}

Result<OpRequest> make_remove(const NamespaceTable& namespaces, NamespaceId ns, Numbers shards, Numbers groups,
                              const KeyList& keys, Deadline deadline) {
  const Entry entry = namespaces.find(ns);
  auto op = start(OpKind::kRemove, entry, keys, deadline);
  if (!op) return op;
  if (Status set = set_parts(*op, *entry, shards, groups); !set) return fail(set.error());
  return op;
}

}  // namespace kvd::client
