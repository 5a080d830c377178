// Inventory: what a store holds, counted from its footers and frames without reading payload: segments, namespaces,
// tenants, sizes, ages, and where a record lies. Read-only, through StoreReaders, one for each device of the store;
// plain values.
//
// The format carries no clock. Ages are told in what it does carry: how many openings ago something was written, and
// how many bytes of log have been begun since. Takes about 40 bytes of memory per record while it counts.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "store/segment_report.h"
#include "store/store_reader.h"

namespace kvd::store {

struct Tally {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;  // of images, with table and padding
};

struct InventoryNamespace {
  NamespaceName name;
  std::vector<GroupSchema> groups;  // those that are seen, by number
  Tally live;                       // served after a start
  Tally dead;                       // removed, or stored anew elsewhere; on flash until its segment goes
};

struct InventorySegment {
  std::uint32_t device = 0;   // which of the readers
  std::uint32_t segment = 0;  // as that device numbers it
  SegmentKind kind = SegmentKind::kFree;
  std::uint64_t generation = 0;
  std::uint64_t openings_ago = 0;
  std::uint32_t newer_segments = 0;  // begun after it
  std::int32_t recency = -1;         // 0 = used last, as the newest header knew it; -1: not listed
  std::uint64_t data_bytes = 0;      // header and frames
  Tally live, dead;
  std::uint64_t tombstones = 0;
};

struct Inventory {
  // Bucket i of the histogram: images of [2^i, 2^(i+1)) bytes; the format has 4 KiB to 64 MiB.
  static constexpr std::size_t kBuckets = 27;

  std::vector<InventorySegment> segments;
  std::vector<InventoryNamespace> namespaces;  // by tenant and fingerprint
  std::array<Tally, kBuckets> sizes{};         // of live records
  Tally live, dead;
  std::uint64_t tombstones = 0;
  std::uint64_t ignored = 0;  // descriptors that no version up to this one serves
  std::uint64_t put_seq_max = 0;
  std::array<std::uint32_t, 6> kinds{};  // segments by SegmentKind
  std::vector<Finding> findings;         // of headers, footers and unsealed frames
};

// Segments done and in all.
using InventoryProgress = std::function<void(std::uint64_t done, std::uint64_t all)>;

// Of all devices of a store: which copy of a record is served is judged over all of them.
Inventory take_inventory(std::span<const StoreReader> readers, const InventoryProgress& progress);
inline Inventory take_inventory(const StoreReader& reader, const InventoryProgress& progress) {
  return take_inventory({&reader, 1}, progress);
}

// A record of `key` on flash.
struct FoundRecord {
  std::uint32_t device = 0;  // which of the readers
  std::uint32_t segment = 0;
  Descriptor descriptor;
  SegmentContent content;  // with the one schema and namespace that the descriptor names, and it
  bool live = false;
};

// Which records are meant: by their key, or by the engine's own (foreign) key, whose record key differs by namespace.
using RecordMatch = std::function<bool(const NamespaceName& name, const Key& key)>;
RecordMatch match_key(const Key& key);
RecordMatch match_foreign(std::string foreign);

// Every copy of every record that is meant, the newest first. Blocks; reads all footers.
std::vector<FoundRecord> find_records(std::span<const StoreReader> readers, const RecordMatch& match);
inline std::vector<FoundRecord> find_records(const StoreReader& reader, const RecordMatch& match) {
  return find_records({&reader, 1}, match);
}

}  // namespace kvd::store
