// Fuzzes the parsers of the flash format. The first byte picks the parser; checksums are repaired for half of the
// inputs, so that what lies behind them is reached too.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "store/device_table.h"
#include "store/format.h"

namespace {

using namespace kvd;
using namespace kvd::store;

constexpr std::uint32_t kSegment = 3;
constexpr std::uint64_t kGeneration = 17;

void check(bool ok) {
  if (!ok) std::abort();
}

void check_content(const SegmentContent& content) {
  for (const auto& d : content.descriptors)
    if (servable(d, content, 4096))
      check(d.schema < content.schemas.size() && d.name_space < content.namespaces.size());
}

// `repair` makes the head plausible and the checksum right, so that tables and descriptors are parsed.
void fuzz_frame(std::vector<std::byte>& bytes, bool repair, const FormatSeeds& seeds) {
  if (repair && bytes.size() >= sizeof(FrameHead)) {
    auto head = load<FrameHead>(bytes.data());
    head.magic = kMagicFrame;
    head.generation = kGeneration;
    head.segment = kSegment;
    head.frame_seq = 0;
    head.records %= 60;
    head.schemas %= 5;
    head.namespaces %= 5;
    head.payload_pages %= 5000;
    const auto used = descriptor_area_bytes(head.schemas, head.namespaces, head.records);
    head.descriptor_bytes = static_cast<std::uint32_t>(align_up(used, kPageBytes));
    bytes.resize(head.descriptor_bytes);
    save(bytes.data(), head);
    seal_frame(bytes, seeds);
  }
  SegmentContent content;
  const auto head = parse_frame(bytes, seeds, {kGeneration, kSegment, 0, 5000}, content);
  check(content.descriptors.size() == (head ? head->records : 0));
  check(content.schemas.size() == (head ? head->schemas : 0));
  check(content.namespaces.size() == (head ? head->namespaces : 0));
  check_content(content);
}

void fuzz_footer(std::vector<std::byte>& bytes, bool repair, const FormatSeeds& seeds) {
  bytes.resize(std::max<std::size_t>(align_up(bytes.size(), kPageBytes), kPageBytes));
  if (repair) {
    auto trailer = load<FooterTrailer>(bytes.data() + bytes.size() - sizeof(FooterTrailer));
    trailer.magic = kMagicFooter;
    trailer.generation = kGeneration;
    trailer.segment = kSegment;
    trailer.records %= 60;
    trailer.schemas %= 5;
    trailer.namespaces %= 5;
    trailer.data_pages = 1 + trailer.data_pages % 4096;
    trailer.footer_bytes =
        static_cast<std::uint32_t>(footer_bytes(trailer.schemas, trailer.namespaces, trailer.records));
    bytes.resize(trailer.footer_bytes);
    save(bytes.data() + bytes.size() - sizeof trailer, trailer);
    seal_footer(bytes, seeds);
  }
  const auto trailer = peek_footer(bytes, kSegment, kGeneration, kSegmentBytesMin);
  if (!trailer) return;
  check(trailer->footer_bytes + std::uint64_t{trailer->data_pages} * kPageBytes <= kSegmentBytesMin);
  if (trailer->footer_bytes > bytes.size()) return;
  const auto footer = parse_footer(Bytes(bytes).last(trailer->footer_bytes), seeds, *trailer);
  if (footer) check_content(footer->content);
}

// `repair`: a table of what the input holds, whole, and with one byte changed.
void fuzz_uses(std::vector<std::byte>& bytes, bool repair, const FormatSeeds& seeds) {
  constexpr std::uint64_t kOpening = 4;
  const auto segments = static_cast<std::uint32_t>(bytes.size() / sizeof(UseEntry));
  if (!repair) {
    bytes.resize(use_table_bytes(segments));
    const auto uses = parse_use_table(bytes, seeds, kOpening, segments);
    check(!uses || uses->uses.size() == segments);
    bytes.resize(change_map_bytes(segments));
    const auto changes = parse_change_map(bytes, seeds, kOpening, segments);
    check(!changes || changes->changed.size() == segment_words(segments));
    return;
  }
  std::vector<UseEntry> uses(segments);
  for (std::uint32_t s = 0; s < segments; ++s) uses[s] = load<UseEntry>(bytes.data() + s * sizeof(UseEntry));
  std::vector<std::byte> area(use_table_bytes(segments));
  const std::uint64_t serial = segments % 3;
  encode_use_table(area, seeds, kOpening, uses, serial);
  const auto whole = parse_use_table(area, seeds, kOpening, segments);
  check(whole && whole->uses == uses && whole->serial == serial);
  check(!parse_use_table(area, seeds, kOpening + 1, segments));
  if (segments == 0) return;
  area[load<std::uint32_t>(bytes.data()) % area.size()] ^= bytes[4] | std::byte{1};
  check(!parse_use_table(area, seeds, kOpening, segments));
}

// `repair`: with a right checksum and a head that counts.
void fuzz_list(std::vector<std::byte>& bytes, bool repair) {
  bytes.resize(kPageBytes);
  if (repair) {
    auto head = load<DeviceTableHead>(bytes.data());
    head.magic = kMagicDeviceTable;
    head.version = kFormatVersion;
    head.copy = 0;
    head.segment_bytes = kSegmentBytesMin;
    head.devices %= kDevicesMax + 2;
    save(bytes.data(), head);
    seal_page(bytes, kMagicDeviceTable);
  }
  const auto table = parse_device_table(bytes, 0);
  if (!table) return;
  std::vector<std::byte> again(kPageBytes);
  encode_device_table(again, *table, 1);
  const auto same = parse_device_table(again, 1);
  check(same && *same == *table);
}

void fuzz_superblock(std::vector<std::byte>& bytes, bool repair) {
  bytes.resize(kPageBytes);
  if (repair) seal_page(bytes, kMagicSuperblock);
  const auto block = parse_superblock(bytes, 0);
  if (block) check(!block->member() || block->store != Uuid{});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  if (size == 0) return 0;
  static const FormatSeeds seeds(Uuid{});
  const std::uint8_t kind = data[0];
  std::vector<std::byte> bytes(size - 1);
  std::transform(data + 1, data + size, bytes.begin(), [](uint8_t b) { return static_cast<std::byte>(b); });
  if ((kind & 24) == 24) {
    fuzz_uses(bytes, (kind & 4) != 0, seeds);
  } else if ((kind & 24) == 16) {
    fuzz_list(bytes, (kind & 4) != 0);
  } else if (kind % 4 == 0) {
    fuzz_superblock(bytes, (kind & 4) != 0);
  } else if (kind % 4 == 1) {
    bytes.resize(kPageBytes);
    (void)parse_segment_header(bytes, seeds, kSegment);
    check(parse_recent(bytes).size() <= kRecentMax);
  } else if (kind % 4 == 2) {
    fuzz_frame(bytes, (kind & 4) != 0, seeds);
  } else {
    fuzz_footer(bytes, (kind & 4) != 0, seeds);
  }
  return 0;
}
