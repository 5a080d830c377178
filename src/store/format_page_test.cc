// The worked examples of docs/formats/flash-log.md, read out of the page: their bytes are decoded by production code
// and must be what the page says about them, and production code must write the same bytes.
//
// When the example has to change: kvd_store_test --gtest_also_run_disabled_tests --gtest_filter='*PrintsTheExample'
// prints its tables and bytes anew.
#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "block/checksum.h"
#include "block/schema.h"
#include "store/device_table.h"
#include "store/format.h"
#include "store/segment_scan.h"

namespace kvd::store {
namespace {

constexpr std::uint32_t kSegment = 2;
constexpr std::uint64_t kGeneration = 0x1'0000'0005;
constexpr const char* kPayload = "KV of 16 tokens.";

// One field as the page states it: where in the structure, and what it holds.
struct Field {
  std::size_t offset;
  std::string name;
  std::string value;
  friend bool operator==(const Field&, const Field&) = default;
};
using Fields = std::vector<Field>;

void PrintTo(const Field& field, std::ostream* out) {
  *out << fmt::format("| {} | {} | {} |", field.offset, field.name, field.value);
}

std::string hex(std::uint64_t value) { return fmt::format("0x{:016X}", value); }
std::string quoted(const std::string& text) { return '"' + text + '"'; }

// ---- What each structure says, decoded by production code. ----

Fields fields_of(const Superblock& b) {
  Fields all = {{8, "version", fmt::to_string(b.version)},
                {12, "copy", fmt::to_string(b.copy)},
                {32, "generation", fmt::to_string(b.generation)},
                {40, "boot_epoch", fmt::to_string(b.boot_epoch)},
                {48, "segment_bytes", fmt::to_string(b.segment_bytes)},
                {56, "segments", fmt::to_string(b.segments)},
                {80, "head_bytes", fmt::to_string(b.head_bytes)}};
  if (!b.member()) return all;
  all.insert(all.end() - 1, {64, "features_incompatible", fmt::to_string(b.features_incompatible)});
  all.push_back({88, "store", uuid_text(b.store)});
  return all;
}

Fields fields_of(const DeviceTable& t) {
  Fields all = {{16, "store", uuid_text(t.store)},
                {32, "generation", fmt::to_string(t.generation)},
                {40, "boot_epoch", fmt::to_string(t.boot_epoch)},
                {48, "segment_bytes", fmt::to_string(t.segment_bytes)},
                {56, "devices", fmt::to_string(t.devices.size())}};
  std::size_t at = sizeof(DeviceTableHead);
  for (const ListedDevice& d : t.devices) {
    all.push_back({at, "uuid", uuid_text(d.uuid)});
    all.push_back({at + 16, "segments", fmt::to_string(d.segments)});
    all.push_back({at + 24, "confirmed", d.confirmed == kStruck ? hex(d.confirmed) : fmt::to_string(d.confirmed)});
    all.push_back({at + 32, "path_bytes", fmt::to_string(d.path.size())});
    all.push_back({at + 40, "path", quoted(d.path)});
    at += sizeof(DeviceEntry);
  }
  return all;
}

Fields fields_of(const SegmentHeader& h, const std::vector<std::uint32_t>& recent) {
  Fields all = {{12, "segment", fmt::to_string(h.segment)},
                {32, "generation", hex(h.generation)},
                {40, "boot_epoch", fmt::to_string(h.boot_epoch)},
                {48, "segment_bytes", fmt::to_string(h.segment_bytes)},
                {64, "recent_count", fmt::to_string(recent.size())}};
  for (std::size_t i = 0; i < recent.size(); ++i)
    all.push_back({68 + 4 * i, fmt::format("recent[{}]", i), fmt::to_string(recent[i])});
  return all;
}

void add_tables(Fields& all, std::size_t at, const SegmentContent& content) {
  for (const GroupSchema& s : content.schemas) {
    all.push_back({at, "group", fmt::to_string(s.group)});
    all.push_back({at + 2, "layers", fmt::to_string(s.layers)});
    all.push_back({at + 4, "slab_bytes", fmt::to_string(s.slab_bytes)});
    all.push_back({at + 8, "parts", fmt::to_string(s.parts)});
    all.push_back({at + 16, "block_tokens", fmt::to_string(s.block_tokens)});
    all.push_back({at + 24, "order", quoted(s.order)});
    at += sizeof(SchemaEntry);
  }
  for (const NamespaceName& n : content.namespaces) {
    all.push_back({at + 8, "tenant", quoted(n.tenant)});
    all.push_back({at + 72, "fingerprint", quoted(n.fingerprint)});
    at += sizeof(NamespaceEntry);
  }
}

void add_descriptors(Fields& all, std::size_t at, const SegmentContent& content) {
  for (const Descriptor& d : content.descriptors) {
    all.push_back({at, "key_hi", hex(d.key_hi)});
    all.push_back({at + 8, "key_lo", hex(d.key_lo)});
    all.push_back({at + 16, "offset", fmt::to_string(d.offset)});
    all.push_back({at + 20, "length", fmt::to_string(d.length)});
    all.push_back({at + 26, "flags", fmt::to_string(d.flags)});
    all.push_back({at + 32, "checksum", hex(d.checksum)});
    all.push_back({at + 40, "put_seq", fmt::to_string(d.put_seq)});
    at += sizeof(Descriptor);
  }
}

Fields fields_of(const FrameHead& h, const SegmentContent& content) {
  Fields all = {{24, "segment", fmt::to_string(h.segment)},
                {28, "frame_seq", fmt::to_string(h.frame_seq)},
                {32, "descriptor_bytes", fmt::to_string(h.descriptor_bytes)},
                {36, "payload_pages", fmt::to_string(h.payload_pages)},
                {40, "records", fmt::to_string(h.records)},
                {44, "schemas", fmt::to_string(h.schemas)},
                {46, "namespaces", fmt::to_string(h.namespaces)},
                {56, "checksum", hex(h.checksum)}};
  add_tables(all, sizeof(FrameHead), content);
  add_descriptors(all, sizeof(FrameHead) + sizeof(SchemaEntry) + sizeof(NamespaceEntry), content);
  return all;
}

Fields fields_of(const Footer& footer) {
  Fields all;
  add_tables(all, 0, footer.content);
  std::size_t at = sizeof(SchemaEntry) + sizeof(NamespaceEntry);
  all.push_back({at, "usage records", fmt::to_string(footer.usage.at(0).records)});
  all.push_back({at + 8, "usage bytes", fmt::to_string(footer.usage.at(0).bytes)});
  add_descriptors(all, at + sizeof(NamespaceUsage), footer.content);
  at = footer.trailer.footer_bytes - sizeof(FooterTrailer);
  all.push_back({at + 28, "frames", fmt::to_string(footer.trailer.frames)});
  all.push_back({at + 32, "footer_bytes", fmt::to_string(footer.trailer.footer_bytes)});
  all.push_back({at + 36, "records", fmt::to_string(footer.trailer.records)});
  all.push_back({at + 44, "data_pages", fmt::to_string(footer.trailer.data_pages)});
  all.push_back({at + 48, "put_seq_max", fmt::to_string(footer.trailer.put_seq_max)});
  all.push_back({at + 56, "checksum", hex(footer.trailer.checksum)});
  return all;
}

// ---- The example, as production code writes it. ----

using Page = std::vector<std::byte>;

struct Example {
  Page superblock = Page(kPageBytes), header = Page(kPageBytes), frame = Page(kPageBytes);
  Page record = Page(kPageBytes), footer = Page(kPageBytes);
  Page member = Page(kPageBytes), list = Page(kPageBytes);  // of the store when it has three devices
};

Uuid example_uuid(std::size_t first = 0xA0) {
  Uuid uuid;
  for (std::size_t i = 0; i < uuid.size(); ++i) uuid[i] = static_cast<std::byte>(first + i);
  return uuid;
}

SegmentContent example_content() {
  SegmentContent content;
  content.schemas = {{0, 1, 16, 2, 16, HitRule::kAll, 0, "LBHNC"}};
  content.namespaces = {{"acme", "llama-3-8b"}};
  Descriptor record;
  record.key_hi = 0x0011'2233'4455'6677;
  record.key_lo = 0x8899'AABB'CCDD'EEFF;
  record.offset = 2;
  record.length = kPageBytes;
  record.put_seq = 41;
  const auto shape = block::shape_of(content.schemas[0], false);
  record.checksum = block::slab_checksum(block::record_seed({record.key(), 0, 0}, shape), 0, as_bytes(kPayload));
  Descriptor tombstone;
  tombstone.key_hi = 1;
  tombstone.key_lo = 2;
  tombstone.offset = 1;  // the segment that held it
  tombstone.flags = Descriptor::kTombstone;
  tombstone.checksum = kGeneration - 1;
  tombstone.put_seq = 42;
  content.descriptors = {tombstone, record};
  return content;
}

Example example() {
  Example e;
  const FormatSeeds seeds(example_uuid());
  Superblock block;
  block.uuid = example_uuid();
  block.generation = 1;
  block.boot_epoch = 1;
  block.segment_bytes = kSegmentBytesMin;
  block.segments = 4;
  encode_superblock(e.superblock, block);
  Superblock member = block;
  member.uuid = example_uuid(0xB0);
  member.boot_epoch = 6;
  member.features_incompatible = kFeatureMember;
  member.store = block.uuid;
  encode_superblock(e.member, member);
  const DeviceTable list{
      block.uuid,
      9,
      6,
      block.segment_bytes,
      {{block.uuid, 4, 6, "/data/a"}, {member.uuid, 4, 6, "/data/b"}, {example_uuid(0xC0), 8, kStruck, "/data/c"}}};
  encode_device_table(e.list, list, 0);
  SegmentHeader header;
  header.segment = kSegment;
  header.uuid = block.uuid;
  header.generation = kGeneration;
  header.boot_epoch = 1;
  header.segment_bytes = block.segment_bytes;
  encode_segment_header(e.header, seeds, header, std::vector<std::uint32_t>{1, 0});
  const SegmentContent content = example_content();
  FrameHead head;
  head.generation = kGeneration;
  head.boot_epoch = 1;
  head.segment = kSegment;
  head.descriptor_bytes = kPageBytes;
  head.payload_pages = 1;
  encode_frame(e.frame, seeds, head, content.schemas, content.namespaces, content.descriptors);
  std::memcpy(e.record.data(), kPayload, 16);
  FooterTrailer trailer;
  trailer.generation = kGeneration;
  trailer.boot_epoch = 1;
  trailer.segment = kSegment;
  trailer.frames = 1;
  trailer.data_pages = 3;
  trailer.put_seq_max = 42;
  encode_footer(e.footer, seeds, trailer, content, std::vector<NamespaceUsage>{{1, kPageBytes}});
  return e;
}

// Decodes what `e` holds: the fields of superblock, header, frame, footer, a member's superblock and the list of
// devices, in this order. Empty when a part is not what it should be.
std::vector<Fields> decode(const Example& e) {
  const auto block = parse_superblock(e.superblock, 0);
  if (!block) return {};
  const FormatSeeds seeds(block->uuid);
  const auto header = parse_segment_header(e.header, seeds, kSegment);
  if (!header) return {};
  SegmentContent content;
  const auto pages = static_cast<std::uint32_t>(block->segment_bytes / kPageBytes);
  const auto frame = parse_frame(e.frame, seeds, {header->generation, kSegment, 0, pages - 1}, content);
  if (!frame) return {};
  const auto trailer = peek_footer(e.footer, kSegment, header->generation, block->segment_bytes);
  if (!trailer) return {};
  const auto footer = parse_footer(e.footer, seeds, *trailer);
  if (!footer || !check_record(e.record, content.descriptors.at(1), content)) return {};
  const auto member = parse_superblock(e.member, 0);
  const auto list = parse_device_table(e.list, 0);
  if (!member || !list) return {};
  return {fields_of(*block),          fields_of(*header, parse_recent(e.header)),
          fields_of(*frame, content), fields_of(*footer),
          fields_of(*member),         fields_of(*list)};
}

// ---- The page. ----

// The part of the page under this heading, to the next one.
std::string section(const std::string& page, const std::string& heading) {
  const auto from = page.find("\n### " + heading + "\n");
  if (from == std::string::npos) return {};
  return page.substr(from + 5, page.find("\n#", from + 5) - from - 5);
}

// Lines "0010: A0 A1 ..." are bytes; what no line shows is zero.
Page bytes_in(const std::string& text) {
  Page bytes(kPageBytes);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::size_t at = 0;
    if (line.size() < 8 || line.substr(0, 4) != "    " || line.find(": ") != 8) continue;
    at = std::stoul(line.substr(4, 4), nullptr, 16);
    std::istringstream pairs(line.substr(10));
    for (std::string pair; pairs >> pair;) bytes.at(at++) = static_cast<std::byte>(std::stoul(pair, nullptr, 16));
  }
  return bytes;
}

// Rows "| 32 | generation | 1 |" of a table.
Fields fields_in(const std::string& text) {
  Fields all;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.size() < 3 || line[0] != '|' || line[2] < '0' || line[2] > '9') continue;
    std::vector<std::string> cells;
    std::istringstream row(line.substr(1));
    for (std::string cell; std::getline(row, cell, '|');) {
      const auto begin = cell.find_first_not_of(' '), end = cell.find_last_not_of(' ');
      cells.push_back(begin == std::string::npos ? "" : cell.substr(begin, end - begin + 1));
    }
    if (cells.size() == 3) all.push_back({std::stoul(cells[0]), cells[1], cells[2]});
  }
  return all;
}

constexpr std::array<const char*, 7> kHeadings{"Superblock copy 0, byte 0 of the file",
                                               "Header of segment 2, byte 37,748,736",
                                               "Frame 0, page 1 of the segment",
                                               "Footer, page 4,095 of the segment",
                                               "Superblock copy 0 of a member",
                                               "List of devices, copy 0",
                                               "The record's image, page 2 of the segment"};

TEST(FormatPage, TheExampleDecodesToWhatThePageSays) {
  const auto path = std::filesystem::path(KVD_SOURCE_DIR) / "docs/formats/flash-log.md";
  std::ifstream in(path);
  ASSERT_TRUE(in) << path;
  const std::string page((std::istreambuf_iterator<char>(in)), {});
  Example read;
  const std::array<Page*, 7> pages{&read.superblock, &read.header, &read.frame, &read.footer,
                                   &read.member,     &read.list,   &read.record};
  for (std::size_t i = 0; i < pages.size(); ++i) *pages[i] = bytes_in(section(page, kHeadings[i]));
  const auto decoded = decode(read);
  ASSERT_EQ(decoded.size(), 6u) << "a part of the example is not what it should be";
  for (std::size_t i = 0; i < decoded.size(); ++i) {
    const std::string text = section(page, kHeadings[i]);
    EXPECT_EQ(fields_in(text), decoded[i]) << kHeadings[i];
  }
  // What this version writes is what the page shows.
  const Example written = example();
  EXPECT_EQ(read.superblock, written.superblock);
  EXPECT_EQ(read.header, written.header);
  EXPECT_EQ(read.frame, written.frame);
  EXPECT_EQ(read.footer, written.footer);
  EXPECT_EQ(read.record, written.record);
  EXPECT_EQ(read.member, written.member);
  EXPECT_EQ(read.list, written.list);
}

void print(const char* heading, const Page& page, const Fields& fields) {
  fmt::print("### {}\n\n", heading);
  for (std::size_t at = 0; at < page.size(); at += 16) {
    const auto row = Bytes(page).subspan(at, 16);
    if (std::ranges::all_of(row, [](std::byte b) { return b == std::byte{0}; })) continue;
    fmt::print("    {:04X}:", at);
    for (const std::byte b : row) fmt::print(" {:02X}", static_cast<unsigned>(b));
    fmt::print("\n");
  }
  if (!fields.empty()) fmt::print("\n| offset | field | value |\n|---|---|---|\n");
  for (const Field& f : fields) fmt::print("| {} | {} | {} |\n", f.offset, f.name, f.value);
  fmt::print("\n");
}

TEST(FormatPage, DISABLED_PrintsTheExample) {
  const Example e = example();
  const auto decoded = decode(e);
  ASSERT_EQ(decoded.size(), 6u);
  const std::array<const Page*, 7> pages{&e.superblock, &e.header, &e.frame, &e.footer, &e.member, &e.list, &e.record};
  for (std::size_t i = 0; i < pages.size(); ++i) print(kHeadings[i], *pages[i], i < 6 ? decoded[i] : Fields{});
}

}  // namespace
}  // namespace kvd::store
