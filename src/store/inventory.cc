#include "store/inventory.h"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>
#include <utility>

#include "store/namespaces.h"

namespace kvd::store {
namespace {

void count(Tally& tally, std::uint64_t bytes) {
  tally.records += 1;
  tally.bytes += bytes;
}

// A record or a tombstone, as far as it decides which copy of a key is served.
struct Entry {
  std::uint64_t hash = 0;  // of namespace, key, shard, group: what the index knows
  std::uint64_t put_seq = 0;
  std::uint32_t segment = 0;  // index into Inventory::segments
  std::uint32_t name_space = 0;
  std::uint32_t bytes = 0;  // 0 = tombstone
};

// By key, the newest first; of equal numbers the tombstone comes last, as recovery lets the record win.
bool newer_first(const Entry& a, const Entry& b) {
  return std::tuple(a.hash, b.put_seq, b.bytes) < std::tuple(b.hash, a.put_seq, a.bytes);
}

class Counting {
 public:
  // A device more, all of whose segments are taken next. `name`: for findings.
  void begin_device(const StoreReader& reader, std::string name);
  void take(const SegmentReport& report);
  void end_device();
  Inventory finish();

 private:
  std::uint32_t namespace_of(const NamespaceName& name);
  void note_group(std::uint32_t name_space, const GroupSchema& schema);
  void settle_copies();
  void settle_ages();

  const StoreReader* reader_ = nullptr;
  std::string device_;
  std::uint32_t devices_ = 0;
  std::size_t first_ = 0;  // of the device's segments
  Inventory inventory_;
  std::vector<Entry> entries_;
  std::map<std::pair<std::string, std::string>, std::uint32_t> names_;
  std::vector<block::NamespaceHash> hashes_;  // of inventory_.namespaces
  std::vector<std::uint32_t> recent_;
  std::uint64_t recent_generation_ = 0;
};

std::uint32_t Counting::namespace_of(const NamespaceName& name) {
  const auto next = static_cast<std::uint32_t>(inventory_.namespaces.size());
  const auto [at, added] = names_.try_emplace({name.tenant, name.fingerprint}, next);
  if (added) {
    inventory_.namespaces.push_back({name, {}, {}, {}});
    hashes_.push_back(block::hash_namespace(name.tenant, as_bytes(name.fingerprint)));
  }
  return at->second;
}

void Counting::note_group(std::uint32_t name_space, const GroupSchema& schema) {
  auto& groups = inventory_.namespaces[name_space].groups;
  if (std::ranges::find(groups, schema) == groups.end()) groups.push_back(schema);
}

void Counting::begin_device(const StoreReader& reader, std::string name) {
  reader_ = &reader;
  device_ = std::move(name);
  first_ = inventory_.segments.size();
  recent_.clear();
  recent_generation_ = 0;
}

// The newest header of the device tells which of its segments were used last.
void Counting::end_device() {
  for (std::size_t i = 0; i < recent_.size(); ++i)
    if (const std::size_t at = first_ + recent_[i]; at < inventory_.segments.size())
      inventory_.segments[at].recency = static_cast<std::int32_t>(i);
  ++devices_;
}

void Counting::take(const SegmentReport& report) {
  InventorySegment line;
  line.device = devices_;
  line.segment = report.segment;
  line.kind = report.kind;
  inventory_.kinds[static_cast<std::size_t>(report.kind)] += 1;
  for (Finding finding : report.findings) {
    finding.device = device_;
    inventory_.findings.push_back(std::move(finding));
  }
  if (report.holds_records()) {
    const SegmentContent& content = report.footer.content;
    const auto index = static_cast<std::uint32_t>(inventory_.segments.size());
    line.generation = report.header.generation;
    const std::uint64_t opening = reader_->superblock().boot_epoch;
    line.openings_ago = opening - std::min(opening, report.header.boot_epoch);  // it may be damaged
    line.data_bytes = std::uint64_t{report.footer.trailer.data_pages} * kPageBytes;
    inventory_.put_seq_max = std::max(inventory_.put_seq_max, report.footer.trailer.put_seq_max);
    if (report.header.generation > recent_generation_) {
      recent_generation_ = report.header.generation;
      recent_ = report.recent;
    }
    for (const Descriptor& d : content.descriptors) {
      const bool served = servable(d, content, report.footer.trailer.data_pages);
      if (!served || (report.kind == SegmentKind::kRefused && !d.tombstone())) {
        ++inventory_.ignored;
        continue;
      }
      const std::uint32_t ns = namespace_of(content.namespaces[d.name_space]);
      const GroupSchema& schema = content.schemas[d.schema];
      note_group(ns, schema);
      line.tombstones += d.tombstone() ? 1 : 0;
      entries_.push_back({record_hash(hashes_[ns], {d.key(), d.shard, schema.group}), d.put_seq, index, ns,
                          d.tombstone() ? 0 : d.length});
    }
  }
  inventory_.tombstones += line.tombstones;
  inventory_.segments.push_back(line);
}

// Of each key the newest copy is served, unless a newer tombstone names it.
void Counting::settle_copies() {
  std::ranges::sort(entries_, newer_first);
  const Entry* before = nullptr;
  for (const Entry& entry : entries_) {
    const bool newest = before == nullptr || before->hash != entry.hash;
    before = &entry;
    if (entry.bytes == 0) continue;
    InventorySegment& segment = inventory_.segments[entry.segment];
    InventoryNamespace& ns = inventory_.namespaces[entry.name_space];
    count(newest ? inventory_.live : inventory_.dead, entry.bytes);
    count(newest ? segment.live : segment.dead, entry.bytes);
    count(newest ? ns.live : ns.dead, entry.bytes);
    if (newest) count(inventory_.sizes[static_cast<std::size_t>(std::bit_width(entry.bytes) - 1)], entry.bytes);
  }
}

void Counting::settle_ages() {
  std::vector<std::uint64_t> generations;
  for (const auto& segment : inventory_.segments)
    if (segment.generation != 0) generations.push_back(segment.generation);
  std::ranges::sort(generations);
  for (auto& segment : inventory_.segments) {
    if (segment.generation == 0) continue;
    const auto after = std::ranges::upper_bound(generations, segment.generation);
    segment.newer_segments = static_cast<std::uint32_t>(generations.end() - after);
  }
}

Inventory Counting::finish() {
  settle_copies();
  settle_ages();
  std::ranges::sort(inventory_.namespaces, {},
                    [](const InventoryNamespace& ns) { return std::tie(ns.name.tenant, ns.name.fingerprint); });
  for (auto& ns : inventory_.namespaces) std::ranges::sort(ns.groups, {}, &GroupSchema::group);
  return std::move(inventory_);
}

}  // namespace

Inventory take_inventory(std::span<const StoreReader> readers, const InventoryProgress& progress) {
  Counting counting;
  std::uint64_t done = 0, all = 0;
  for (const StoreReader& reader : readers) all += reader.segments();
  for (const StoreReader& reader : readers) {
    counting.begin_device(reader, readers.size() > 1 ? reader.path() : "");
    for (std::uint32_t s = 0; s < reader.segments(); ++s) {
      counting.take(read_segment(reader, s, false));
      progress(++done, all);
    }
    counting.end_device();
  }
  return counting.finish();
}

RecordMatch match_key(const Key& key) {
  return [key](const NamespaceName&, const Key& other) { return other == key; };
}

RecordMatch match_foreign(std::string foreign) {
  return [foreign = std::move(foreign)](const NamespaceName& name, const Key& key) {
    const auto hash = block::hash_namespace(name.tenant, as_bytes(name.fingerprint));
    return key == block::key_of_foreign(hash, as_bytes(foreign));
  };
}

namespace {

// What a segment has of the records that are meant, tombstones too.
void find_in(const SegmentReport& report, std::uint32_t device, const RecordMatch& match,
             std::vector<FoundRecord>& found) {
  const SegmentContent& content = report.footer.content;
  for (const Descriptor& d : content.descriptors) {
    if (!servable(d, content, report.footer.trailer.data_pages)) continue;
    if (!match(content.namespaces[d.name_space], d.key())) continue;
    if (report.kind == SegmentKind::kRefused && !d.tombstone()) continue;
    FoundRecord record{
        device, report.segment, d, {{content.schemas[d.schema]}, {content.namespaces[d.name_space]}, {}}, false};
    record.descriptor.schema = record.descriptor.name_space = 0;
    record.content.descriptors.push_back(record.descriptor);
    found.push_back(std::move(record));
  }
}

}  // namespace

std::vector<FoundRecord> find_records(std::span<const StoreReader> readers, const RecordMatch& match) {
  std::vector<FoundRecord> found;
  for (std::uint32_t device = 0; device < readers.size(); ++device)
    for (std::uint32_t s = 0; s < readers[device].segments(); ++s)
      find_in(read_segment(readers[device], s, false), device, match, found);
  const auto is_tombstone = [](const FoundRecord& record) { return record.descriptor.tombstone(); };
  std::vector<FoundRecord> tombstones;
  std::ranges::copy_if(found, std::back_inserter(tombstones), is_tombstone);
  std::erase_if(found, is_tombstone);
  std::ranges::sort(found, std::ranges::greater(), [](const FoundRecord& r) { return r.descriptor.put_seq; });
  const auto newer = [](const FoundRecord& other, const FoundRecord& record) {
    return other.descriptor.put_seq > record.descriptor.put_seq && other.descriptor.shard == record.descriptor.shard &&
           other.content.schemas[0].group == record.content.schemas[0].group &&
           other.content.namespaces[0] == record.content.namespaces[0];
  };
  for (FoundRecord& record : found) {
    const auto beats = [&](const FoundRecord& other) { return newer(other, record); };
    record.live = std::ranges::none_of(found, beats) && std::ranges::none_of(tombstones, beats);
  }
  return found;
}

}  // namespace kvd::store
