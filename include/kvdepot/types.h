// Names and shapes of what kvdepot stores: keys, namespaces, schemas, regions. Plain values, no behaviour.
//
// Vocabulary (docs/architecture.md, section "Words"): a *record* is all layers of one token block of one shard and
// group; a *slab* is one layer of a record (its K and V parts as the schema orders them), the unit of transfer and of
// verification. A record is complete or absent, 4 KiB to 64 MiB with its table.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvd {

// Limits of the formats; both sides refuse what exceeds them with Code::kInvalid.
inline constexpr std::size_t kRecordBytesMax = std::size_t{64} << 20;  // storage format: 14-bit length in 4 KiB units
inline constexpr std::size_t kForeignKeyBytesMax = 256;                // fits a record's table page beside 400 layers
inline constexpr std::size_t kKeysPerRequestMax = 4096;                // of all groups together; 4096 x 16 tokens = 64k
inline constexpr std::size_t kLayersMax = 400;                         // table page of 4 KiB: 400 x 8 B + foreign key
inline constexpr std::size_t kGroupsMax = 16;                          // groups and shards in one match
inline constexpr std::size_t kShardsMax = 64;

// A 128-bit record key. Native keys are chained hashes over the prefix; foreign keys (an engine's own block hashes)
// are hashed with their namespace, see src/block/key.h. Equal keys mean equal whole prefixes.
struct Key {
  std::uint64_t hi = 0;
  std::uint64_t lo = 0;
  friend auto operator<=>(const Key&, const Key&) = default;
};

// How a match treats the blocks of one group.
enum class HitRule : std::uint8_t {
  kAll = 0,       // every block of the prefix (full attention)
  kTrailing = 1,  // the last `hit_blocks` blocks of the prefix (sliding window)
  kLast = 2,      // only the last block (state of a recurrent layer)
};

// Geometry of the records of one group. Two namespaces with one fingerprint must have equal schemas: a difference is
// refused with Code::kInvalid, never converted.
struct GroupSchema {
  std::uint16_t group = 0;
  std::uint16_t layers = 0;        // slabs per record, 1..kLayersMax
  std::uint32_t slab_bytes = 0;    // bytes of one slab, > 0
  std::uint16_t parts = 2;         // K and V: 2; latent (MLA): 1
  std::uint32_t block_tokens = 0;  // tokens of one block
  HitRule rule = HitRule::kAll;
  std::uint16_t hit_blocks = 0;  // for kTrailing
  std::string order{};           // canonical order of the bytes in a slab, e.g. "LBHNC" (at most 64 bytes)
  friend bool operator==(const GroupSchema&, const GroupSchema&) = default;
};

// A namespace: who owns the bytes and everything they depend on. A reader whose namespace differs gets a miss.
struct Namespace {
  std::string tenant = "default";   // at most 64 bytes
  std::string fingerprint;          // opaque bytes, 1..128: identity of weights, dtype, layout, ...
  std::vector<GroupSchema> groups;  // 1..kGroupsMax
};

// Where a record is served from.
enum class Tier : std::uint8_t { kNone = 0, kPool = 1, kFlash = 2 };

// When a put is acknowledged (storage contract, docs/architecture.md "Contracts").
enum class AckLevel : std::uint8_t {
  kPooled = 0,   // in DRAM
  kWritten = 1,  // survives SIGKILL of the depot
  kSynced = 2,   // survives power loss
};

// Kind of memory behind a registered region.
enum class RegionKind : std::uint8_t { kHost = 0, kDevice = 1, kFile = 2 };

// A piece of memory registered once with a client; descriptors name it by id, never by raw pointer.
struct RegionId {
  std::uint32_t value = 0;
  friend auto operator<=>(const RegionId&, const RegionId&) = default;
};

// One strided run inside a slab's place in memory: `count` pieces of `length` bytes, `stride` bytes apart, starting
// at `offset` from the slab's base. The pieces of all runs, in order, are the slab's bytes. K and V that lie apart
// are two runs; a slab that is contiguous is one run {0, 0, 1, slab_bytes}.
struct Run {
  std::uint64_t offset = 0;
  std::uint64_t stride = 0;
  std::uint32_t count = 1;
  std::uint32_t length = 0;
};

// Where the slabs of one operation lie (destination of a multiget, source of a multiput):
//   address(key i, layer l) = region base + layer_offset[l - first layer] + block_offset[i] + run offsets.
// The client copies the arrays; the memory itself must stay valid until the operation has completed.
struct Placement {
  RegionId region{};
  std::span<const std::uint64_t> layer_offset{};  // one per layer of the operation, bytes
  std::span<const std::uint64_t> block_offset{};  // one per key of the operation, bytes
  std::span<const Run> runs{};                    // empty = one contiguous run of slab_bytes
};

// Keys of one request: `count` keys of `key_bytes` each, back to back. key_bytes == 16 with native == true are
// native keys (hi, lo as little-endian u64); otherwise they are foreign keys, opaque bytes of the namespace.
struct KeyList {
  std::span<const std::byte> bytes{};
  std::uint16_t key_bytes = 0;
  bool native = false;
  [[nodiscard]] std::size_t count() const noexcept { return key_bytes == 0 ? 0 : bytes.size() / key_bytes; }
};

}  // namespace kvd
