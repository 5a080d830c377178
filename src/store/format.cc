#include "store/format.h"

#include <xxhash.h>

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "block/schema.h"

namespace kvd::store {
namespace {

constexpr std::size_t kFrameChecksumAt = offsetof(FrameHead, checksum);
constexpr std::size_t kFooterChecksumAt = offsetof(FooterTrailer, checksum);
constexpr std::size_t kUsesChecksumAt = offsetof(UseTableHead, checksum);
constexpr std::size_t kChangesChecksumAt = offsetof(ChangeMapHead, checksum);

// XXH3-64 of `bytes` with the eight at `hole` taken as zero.
std::uint64_t checksum_around(Bytes bytes, std::size_t hole, std::uint64_t seed) noexcept {
  const std::uint64_t before = XXH3_64bits_withSeed(bytes.data(), hole, seed);
  return XXH3_64bits_withSeed(bytes.data() + hole + 8, bytes.size() - hole - 8, before);
}

// Copies `values` to `to` and returns what follows them.
template <class T>
std::byte* put_all(std::byte* to, std::span<const T> values) noexcept {
  if (!values.empty()) std::memcpy(to, values.data(), values.size_bytes());
  return to + values.size_bytes();
}

std::byte* put_tables(std::byte* to, std::span<const GroupSchema> schemas,
                      std::span<const NamespaceName> namespaces) noexcept {
  for (const auto& schema : schemas) {
    save(to, encode_schema(schema));
    to += sizeof(SchemaEntry);
  }
  for (const auto& name : namespaces) {
    save(to, encode_namespace(name));
    to += sizeof(NamespaceEntry);
  }
  return to;
}

Result<GroupSchema> parse_schema(const SchemaEntry& entry) {
  if (entry.order_bytes > entry.order.size() || entry.rule > static_cast<std::uint8_t>(HitRule::kLast))
    return fail(Code::kCorrupt, "schema entry is not valid");
  GroupSchema schema;
  schema.group = entry.group;
  schema.layers = entry.layers;
  schema.slab_bytes = entry.slab_bytes;
  schema.parts = entry.parts;
  schema.block_tokens = entry.block_tokens;
  schema.rule = static_cast<HitRule>(entry.rule);
  schema.hit_blocks = entry.hit_blocks;
  schema.order.assign(entry.order.data(), entry.order_bytes);
  if (!block::check_schema(schema)) return fail(Code::kCorrupt, "schema entry exceeds the format's limits");
  return schema;
}

Status parse_namespace(const NamespaceEntry& entry, SegmentContent& content) {
  if (entry.tenant_bytes > entry.tenant.size() || entry.fingerprint_bytes > entry.fingerprint.size())
    return fail(Code::kCorrupt, "namespace entry is not valid");
  content.add_namespace({entry.tenant.data(), entry.tenant_bytes}, {entry.fingerprint.data(), entry.fingerprint_bytes});
  return {};
}

// Reads the tables at `at`; the caller has checked that they lie inside the buffer.
Result<const std::byte*> parse_tables(const std::byte* at, std::size_t schemas, std::size_t namespaces,
                                      SegmentContent& content) {
  for (std::size_t i = 0; i < schemas; ++i, at += sizeof(SchemaEntry)) {
    auto schema = parse_schema(load<SchemaEntry>(at));
    if (!schema) return fail(schema.error());
    content.schemas.push_back(std::move(*schema));
  }
  for (std::size_t i = 0; i < namespaces; ++i, at += sizeof(NamespaceEntry)) {
    if (auto added = parse_namespace(load<NamespaceEntry>(at), content); !added) return fail(added.error());
  }
  return at;
}

template <class T>
const std::byte* take_all(const std::byte* at, std::size_t count, std::vector<T>& out) {
  const std::size_t old = out.size();
  out.resize(old + count);
  if (count > 0) std::memcpy(out.data() + old, at, count * sizeof(T));
  return at + count * sizeof(T);
}

}  // namespace

FormatSeeds::FormatSeeds(const Uuid& uuid) noexcept
    : segment(XXH3_64bits_withSeed(uuid.data(), uuid.size(), kMagicSegment)),
      frame(XXH3_64bits_withSeed(uuid.data(), uuid.size(), kMagicFrame)),
      footer(XXH3_64bits_withSeed(uuid.data(), uuid.size(), kMagicFooter)),
      uses(XXH3_64bits_withSeed(uuid.data(), uuid.size(), kMagicUses)),
      changes(XXH3_64bits_withSeed(uuid.data(), uuid.size(), kMagicChanges)) {}

void seal_page(MutableBytes page, std::uint64_t seed) noexcept {
  save(page.data() + kPageChecksumAt, checksum_around(page, kPageChecksumAt, seed));
}

bool page_checksum_ok(Bytes page, std::uint64_t seed) noexcept {
  return load<std::uint64_t>(page.data() + kPageChecksumAt) == checksum_around(page, kPageChecksumAt, seed);
}

std::string uuid_text(const Uuid& uuid) {
  std::string text;
  for (std::size_t i = 0; i < uuid.size(); ++i)
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", static_cast<unsigned>(uuid[i]));
  return text;
}

void encode_superblock(MutableBytes page, const Superblock& block) noexcept {
  KVD_CHECK(page.size() == kPageBytes);
  std::memset(page.data(), 0, page.size());
  save(page.data(), block);
  seal_page(page, kMagicSuperblock);
}

void encode_segment_header(MutableBytes page, const FormatSeeds& seeds, const SegmentHeader& header,
                           std::span<const std::uint32_t> recent, std::uint64_t unopened) noexcept {
  KVD_CHECK(page.size() == kPageBytes && recent.size() <= kRecentMax);
  std::memset(page.data(), 0, page.size());
  save(page.data(), header);
  save(page.data() + kRecentAt, static_cast<std::uint32_t>(recent.size()));
  put_all(page.data() + kRecentAt + 4, recent);
  save(page.data() + kUnopenedAt, unopened);
  seal_page(page, seeds.segment);
}

Result<Superblock> parse_superblock(Bytes page, std::uint32_t copy) noexcept {
  if (page.size() != kPageBytes) return fail(Code::kCorrupt, "superblock has the wrong size");
  const auto block = load<Superblock>(page.data());
  if (block.magic != kMagicSuperblock) return fail(Code::kCorrupt, "not a superblock");
  // A newer version may check itself otherwise, so it is believed without a checksum; the caller asks two copies.
  if (block.version > kFormatVersion) return fail(Code::kStale, "the store was written by a newer version of kvdepot");
  if (!page_checksum_ok(page, kMagicSuperblock) || block.copy != copy)
    return fail(Code::kCorrupt, "superblock copy fails its checksum");
  if ((block.features_incompatible & ~kSuperblockFeaturesKnown) != 0)
    return fail(Code::kStale, "the store uses a feature of a newer version of kvdepot");
  const bool sane = segment_bytes_ok(block.segment_bytes) && block.segments <= kSegmentsMax &&
                    block.head_bytes == kHeadBytes && block.version == kFormatVersion &&
                    (!block.member() || block.store != Uuid{});
  if (!sane) return fail(Code::kCorrupt, "superblock is not possible");
  return block;
}

Result<SegmentHeader> parse_segment_header(Bytes page, const FormatSeeds& seeds, std::uint32_t segment) noexcept {
  if (page.size() != kPageBytes) return fail(Code::kCorrupt, "segment header has the wrong size");
  const auto header = load<SegmentHeader>(page.data());
  if (header.magic != kMagicSegment || header.segment != segment || !page_checksum_ok(page, seeds.segment))
    return fail(Code::kCorrupt, "not a header of this segment");
  if (header.version != kFormatVersion) return fail(Code::kStale, "the segment was written by a newer version");
  return header;
}

std::vector<std::uint32_t> parse_recent(Bytes page) {
  std::vector<std::uint32_t> recent;
  const std::size_t count = std::min<std::size_t>(load<std::uint32_t>(page.data() + kRecentAt), kRecentMax);
  take_all(page.data() + kRecentAt + 4, count, recent);
  return recent;
}

std::uint64_t parse_unopened(Bytes page) noexcept { return load<std::uint64_t>(page.data() + kUnopenedAt); }

void encode_use_table(MutableBytes area, const FormatSeeds& seeds, std::uint64_t boot_epoch,
                      std::span<const UseEntry> uses, std::uint64_t serial) noexcept {
  KVD_CHECK(area.size() == use_table_bytes(uses.size()));
  std::memset(area.data(), 0, area.size());
  UseTableHead head;
  head.version = serial == 0 ? kFormatVersion : kUseTableServing;
  head.segments = static_cast<std::uint32_t>(uses.size());
  head.boot_epoch = boot_epoch;
  head.serial = serial;
  save(area.data(), head);
  put_all(area.data() + sizeof head, uses);
  save(area.data() + kUsesChecksumAt, checksum_around(area, kUsesChecksumAt, seeds.uses));
}

Result<UseList> parse_use_table(Bytes area, const FormatSeeds& seeds, std::uint64_t boot_epoch,
                                std::uint32_t segments) {
  if (area.size() != use_table_bytes(segments)) return fail(Code::kCorrupt, "table of uses has the wrong size");
  const auto head = load<UseTableHead>(area.data());
  const bool version = head.version == (head.serial == 0 ? kFormatVersion : kUseTableServing);
  const bool ours = head.magic == kMagicUses && version && head.segments == segments && head.boot_epoch == boot_epoch;
  if (!ours || head.checksum != checksum_around(area, kUsesChecksumAt, seeds.uses))
    return fail(Code::kCorrupt, "no table of the last opening's uses");
  UseList list;
  list.serial = head.serial;
  take_all(area.data() + sizeof head, segments, list.uses);
  return list;
}

void encode_change_map(MutableBytes area, const FormatSeeds& seeds, std::uint64_t boot_epoch, std::uint64_t serial,
                       std::uint32_t segments, const SegmentBits& changed) noexcept {
  KVD_CHECK(area.size() == change_map_bytes(segments) && changed.size() == segment_words(segments));
  std::memset(area.data(), 0, area.size());
  ChangeMapHead head;
  head.segments = segments;
  head.boot_epoch = boot_epoch;
  head.serial = serial;
  save(area.data(), head);
  put_all(area.data() + sizeof head, std::span(changed));
  save(area.data() + kChangesChecksumAt, checksum_around(area, kChangesChecksumAt, seeds.changes));
}

Result<Changes> parse_change_map(Bytes area, const FormatSeeds& seeds, std::uint64_t boot_epoch,
                                 std::uint32_t segments) {
  if (area.size() != change_map_bytes(segments)) return fail(Code::kCorrupt, "map of changes has the wrong size");
  const auto head = load<ChangeMapHead>(area.data());
  const bool ours = head.magic == kMagicChanges && head.version == kFormatVersion && head.segments == segments &&
                    head.boot_epoch == boot_epoch;
  if (!ours || head.checksum != checksum_around(area, kChangesChecksumAt, seeds.changes))
    return fail(Code::kCorrupt, "no map of the last opening's changes");
  Changes changes;
  changes.serial = head.serial;
  take_all(area.data() + sizeof head, segment_words(segments), changes.changed);
  return changes;
}

void SegmentContent::reserve(std::size_t records) {
  constexpr std::size_t kFew = 8;
  schemas.reserve(kFew);
  namespaces.reserve(kFew);
  descriptors.reserve(records);
  spare.reserve(kFew);
  while (spare.size() < kFew) {
    NamespaceName& name = spare.emplace_back();
    name.tenant.reserve(NamespaceEntry().tenant.size());
    name.fingerprint.reserve(NamespaceEntry().fingerprint.size());
  }
}

void SegmentContent::clear() {
  constexpr std::size_t kSpareMax = 64;  // segments mostly hold a few namespaces
  for (auto& name : namespaces)
    if (spare.size() < kSpareMax) spare.push_back(std::move(name));
  schemas.clear();
  namespaces.clear();
  descriptors.clear();
}

void SegmentContent::add_namespace(std::string_view tenant, std::string_view fingerprint) {
  NamespaceName& name = namespaces.emplace_back();
  if (!spare.empty()) {
    name = std::move(spare.back());
    spare.pop_back();
  }
  name.tenant.assign(tenant);
  name.fingerprint.assign(fingerprint);
}

SchemaEntry encode_schema(const GroupSchema& schema) noexcept {
  SchemaEntry entry;
  KVD_CHECK(schema.order.size() <= entry.order.size());
  entry.group = schema.group;
  entry.layers = schema.layers;
  entry.slab_bytes = schema.slab_bytes;
  entry.parts = schema.parts;
  entry.rule = static_cast<std::uint8_t>(schema.rule);
  entry.order_bytes = static_cast<std::uint8_t>(schema.order.size());
  entry.hit_blocks = schema.hit_blocks;
  entry.block_tokens = schema.block_tokens;
  std::copy(schema.order.begin(), schema.order.end(), entry.order.begin());
  return entry;
}

NamespaceEntry encode_namespace(const NamespaceName& name) noexcept {
  NamespaceEntry entry;
  KVD_CHECK(name.tenant.size() <= entry.tenant.size() && name.fingerprint.size() <= entry.fingerprint.size());
  entry.tenant_bytes = static_cast<std::uint8_t>(name.tenant.size());
  entry.fingerprint_bytes = static_cast<std::uint8_t>(name.fingerprint.size());
  std::copy(name.tenant.begin(), name.tenant.end(), entry.tenant.begin());
  std::copy(name.fingerprint.begin(), name.fingerprint.end(), entry.fingerprint.begin());
  return entry;
}

void seal_frame(MutableBytes area, const FormatSeeds& seeds) noexcept {
  save(area.data() + kFrameChecksumAt, checksum_around(area, kFrameChecksumAt, seeds.frame));
}

void seal_footer(MutableBytes area, const FormatSeeds& seeds) noexcept {
  const std::size_t hole = area.size() - sizeof(FooterTrailer) + kFooterChecksumAt;
  save(area.data() + hole, checksum_around(area, hole, seeds.footer));
}

void encode_frame(MutableBytes area, const FormatSeeds& seeds, FrameHead head, std::span<const GroupSchema> schemas,
                  std::span<const NamespaceName> namespaces, std::span<const Descriptor> descriptors) noexcept {
  const std::size_t used = descriptor_area_bytes(schemas.size(), namespaces.size(), descriptors.size());
  KVD_CHECK(area.size() == head.descriptor_bytes && area.size() == align_up(used, kPageBytes));
  KVD_CHECK(area.size() <= kDescriptorAreaMax && descriptors.size() <= kFrameRecordsMax);
  head.schemas = static_cast<std::uint16_t>(schemas.size());
  head.namespaces = static_cast<std::uint16_t>(namespaces.size());
  head.records = static_cast<std::uint32_t>(descriptors.size());
  save(area.data(), head);
  std::byte* at = put_tables(area.data() + sizeof head, schemas, namespaces);
  at = put_all(at, descriptors);
  std::memset(at, 0, area.size() - used);
  seal_frame(area, seeds);
}

Result<FrameHead> parse_frame(Bytes bytes, const FormatSeeds& seeds, const FrameExpected& expected,
                              SegmentContent& content) {
  if (bytes.size() < sizeof(FrameHead)) return fail(Code::kCorrupt, "no room for a frame");
  const auto head = load<FrameHead>(bytes.data());
  if (head.magic != kMagicFrame || head.generation != expected.generation || head.segment != expected.segment ||
      head.frame_seq != expected.frame_seq)
    return fail(Code::kCorrupt, "not the next frame of this segment");
  const std::size_t used = descriptor_area_bytes(head.schemas, head.namespaces, head.records);
  if (head.records > kFrameRecordsMax || head.descriptor_bytes > std::min(bytes.size(), kDescriptorAreaMax) ||
      head.descriptor_bytes != align_up(used, kPageBytes))
    return fail(Code::kCorrupt, "frame has impossible lengths");
  if (head.descriptor_bytes / kPageBytes + std::uint64_t{head.payload_pages} > expected.pages_left)
    return fail(Code::kCorrupt, "frame is longer than its segment");
  if (content.schemas.size() + head.schemas > UINT16_MAX || content.namespaces.size() + head.namespaces > UINT16_MAX)
    return fail(Code::kCorrupt, "segment tables are too long");
  if (checksum_around(bytes.first(head.descriptor_bytes), kFrameChecksumAt, seeds.frame) != head.checksum)
    return fail(Code::kCorrupt, "frame fails its checksum");
  const std::size_t schemas = content.schemas.size();
  const std::size_t namespaces = content.namespaces.size();
  auto at = parse_tables(bytes.data() + sizeof head, head.schemas, head.namespaces, content);
  if (!at) {
    content.schemas.resize(schemas);
    content.namespaces.resize(namespaces);
    return fail(at.error());
  }
  take_all(*at, head.records, content.descriptors);
  return head;
}

void encode_footer(MutableBytes area, const FormatSeeds& seeds, FooterTrailer trailer, const SegmentContent& content,
                   std::span<const NamespaceUsage> usage) noexcept {
  const auto& schemas = content.schemas;
  const auto& namespaces = content.namespaces;
  const auto& descriptors = content.descriptors;
  KVD_CHECK(area.size() == footer_bytes(schemas.size(), namespaces.size(), descriptors.size()));
  KVD_CHECK(usage.size() == namespaces.size());
  trailer.footer_bytes = static_cast<std::uint32_t>(area.size());
  trailer.schemas = static_cast<std::uint16_t>(schemas.size());
  trailer.namespaces = static_cast<std::uint16_t>(namespaces.size());
  trailer.records = static_cast<std::uint32_t>(descriptors.size());
  std::byte* at = put_tables(area.data(), schemas, namespaces);
  at = put_all(at, usage);
  at = put_all(at, std::span<const Descriptor>(descriptors));
  std::byte* const end = area.data() + area.size() - sizeof trailer;
  std::memset(at, 0, static_cast<std::size_t>(end - at));
  save(end, trailer);
  seal_footer(area, seeds);
}

Result<FooterTrailer> peek_footer(Bytes tail, std::uint32_t segment, std::uint64_t generation,
                                  std::uint64_t segment_bytes) noexcept {
  if (tail.size() < kPageBytes) return fail(Code::kCorrupt, "no room for a footer");
  const auto trailer = load<FooterTrailer>(tail.data() + tail.size() - sizeof(FooterTrailer));
  if (trailer.magic != kMagicFooter || trailer.segment != segment || trailer.generation != generation)
    return fail(Code::kCorrupt, "not a footer of this segment");
  const std::uint64_t data_bytes = std::uint64_t{trailer.data_pages} * kPageBytes;
  if (trailer.footer_bytes != footer_bytes(trailer.schemas, trailer.namespaces, trailer.records) ||
      trailer.data_pages == 0 || data_bytes > segment_bytes || trailer.footer_bytes > segment_bytes - data_bytes)
    return fail(Code::kCorrupt, "footer has impossible lengths");
  return trailer;
}

Result<Footer> parse_footer(Bytes area, const FormatSeeds& seeds, const FooterTrailer& trailer) {
  Footer footer;
  if (auto parsed = parse_footer(area, seeds, trailer, footer); !parsed) return fail(parsed.error());
  return footer;
}

Status parse_footer(Bytes area, const FormatSeeds& seeds, const FooterTrailer& trailer, Footer& footer) {
  footer.content.clear();
  footer.usage.clear();
  if (area.size() != trailer.footer_bytes ||
      area.size() != footer_bytes(trailer.schemas, trailer.namespaces, trailer.records))
    return fail(Code::kCorrupt, "footer has the wrong size");
  const std::size_t hole = area.size() - sizeof trailer + kFooterChecksumAt;
  if (checksum_around(area, hole, seeds.footer) != trailer.checksum)
    return fail(Code::kCorrupt, "footer fails its checksum");
  footer.trailer = trailer;
  auto at = parse_tables(area.data(), trailer.schemas, trailer.namespaces, footer.content);
  if (!at) return fail(at.error());
  const std::byte* descriptors = take_all(*at, trailer.namespaces, footer.usage);
  take_all(descriptors, trailer.records, footer.content.descriptors);
  return {};
}

bool servable(const Descriptor& d, const SegmentContent& content, std::uint32_t data_pages) noexcept {
  if ((d.flags & ~Descriptor::kFlagsKnown) != 0) return false;
  if (d.schema >= content.schemas.size() || d.name_space >= content.namespaces.size()) return false;
  if (d.tombstone()) return true;
  const GroupSchema& schema = content.schemas[d.schema];
  const bool sized =
      d.length == block::record_bytes_of(schema, true) || d.length == block::record_bytes_of(schema, false);
  return sized && d.offset >= 1 && std::uint64_t{d.offset} + d.length / kPageBytes <= data_pages;
}

}  // namespace kvd::store
