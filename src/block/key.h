// Keys and record identities: how outside keys become the 128-bit keys that the store, the wire and the checksums use.
// Pure functions, any thread.
//
// Native keys chain over the prefix: key_i = H(namespace, key_{i-1}, tokens_i, extras). Foreign keys (an engine's own
// block hashes, opaque bytes) become H(namespace, foreign key); the whole foreign key is stored beside the record and
// compared at a get, so that two foreign keys with one 128-bit hash are a miss and never wrong bytes.
// H is XXH3-128 seeded by a domain constant: keys are for addressing; guarding against forgery is what identity is for.
#pragma once

#include <cstdint>
#include <functional>

#include "base/bytes.h"
#include "kvdepot/types.h"

namespace kvd::block {

// Hash of a namespace's tenant, fingerprint and nothing else: equal in every process and version of format 1.
struct NamespaceHash {
  std::uint64_t hi = 0;
  std::uint64_t lo = 0;
  friend auto operator<=>(const NamespaceHash&, const NamespaceHash&) = default;
};
NamespaceHash hash_namespace(std::string_view tenant, Bytes fingerprint) noexcept;

// The key of a foreign key in a namespace.
Key key_of_foreign(const NamespaceHash& ns, Bytes foreign) noexcept;

// The next native key of a chain; `parent` is Key{} for the first block; `extras` (adapter content, salt) may be empty.
Key next_native_key(const NamespaceHash& ns, const Key& parent, std::span<const std::uint32_t> tokens,
                    Bytes extras) noexcept;

// Key i of a request's list. Requires i < keys.count(); a native list has 16-byte keys.
Key key_at(const NamespaceHash& ns, const KeyList& keys, std::size_t i) noexcept;
// The foreign bytes of key i; empty for a native list.
Bytes foreign_at(const KeyList& keys, std::size_t i) noexcept;

// What a record is stored under: the key plus which part of the model it belongs to.
struct RecordId {
  Key key;
  std::uint16_t shard = 0;
  std::uint16_t group = 0;
  friend auto operator<=>(const RecordId&, const RecordId&) = default;
};

// 64 well-mixed bits of a record id, for in-memory tables and the flash index's tag.
std::uint64_t hash_record(const RecordId& id) noexcept;
// The same of a record of one namespace among many.
std::uint64_t hash_record(const NamespaceHash& ns, const RecordId& id) noexcept;

struct RecordIdHash {
  std::size_t operator()(const RecordId& id) const noexcept { return hash_record(id); }
};

}  // namespace kvd::block
