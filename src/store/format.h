// The bytes of the flash log: structures, their encoders and their parsers. docs/formats/flash-log.md is the
// description; this header, and store/device_table.h for the list of devices, are the only code that knows it.
//
// Pure functions on buffers, any thread. Parsers take outside bytes: they check every length and position before use
// and never fail on content but with an Error (kCorrupt: no such structure, or damaged; kStale: of a newer version).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "block/key.h"
#include "kvdepot/types.h"

namespace kvd::store {

inline constexpr std::uint32_t kFormatVersion = 1;
inline constexpr std::uint64_t kHeadBytes = std::uint64_t{4} << 20;  // superblock copies, 1 MiB apart: no two share
inline constexpr std::uint32_t kSuperblockCopies = 4;                // a stripe or an erase block
inline constexpr std::uint64_t kSuperblockStride = kHeadBytes / kSuperblockCopies;
// The end of the head area, where nothing is ever written, has no space of its own: it makes up for what a file system
// takes for the store's other files and for its list of extents, so that a store takes no more than it was given.
inline constexpr std::uint64_t kHeadHoleBytes = std::uint64_t{512} << 10;
inline constexpr std::uint64_t kHeadHoleAt = kHeadBytes - kHeadHoleBytes;
inline constexpr std::uint64_t kSegmentBytesMin = std::uint64_t{16} << 20;
inline constexpr std::uint64_t kSegmentBytesMax = std::uint64_t{256} << 20;  // 16-bit page offsets in the index
inline constexpr std::uint32_t kSegmentsMax = 1u << 20;                      // 20-bit segment numbers in the index
inline constexpr std::size_t kDescriptorAreaMax = std::size_t{64} << 10;
inline constexpr std::uint32_t kFrameRecordsMax = 1000;  // images of one frame fit in one writev (IOV_MAX 1,024)
inline constexpr std::uint64_t kFeaturesKnown = 0;       // of segment headers
inline constexpr std::uint64_t kFeatureMember = 1;       // of superblocks: one of a store's several devices
inline constexpr std::uint64_t kSuperblockFeaturesKnown = kFeatureMember;

inline constexpr std::uint64_t kMagicSuperblock = 0x5245'5055'5344'564B;  // "KVDSUPER"
inline constexpr std::uint64_t kMagicSegment = 0x544D'4745'5344'564B;     // "KVDSEGMT"
inline constexpr std::uint64_t kMagicFrame = 0x454D'4152'4644'564B;       // "KVDFRAME"
inline constexpr std::uint64_t kMagicUses = 0x5345'5355'5344'564B;        // "KVDSUSES"
inline constexpr std::uint64_t kMagicChanges = 0x5347'4E48'4344'564B;     // "KVDCHNGS"
inline constexpr std::uint64_t kMagicFooter = 0x5254'4F4F'4644'564B;      // "KVDFOOTR"

using Uuid = std::array<std::byte, 16>;

// ---- Structures as they lie on flash. Reserved bytes are zero. ----

struct Superblock {
  std::uint64_t magic = kMagicSuperblock;
  std::uint32_t version = kFormatVersion;
  std::uint32_t copy = 0;
  Uuid uuid{};
  std::uint64_t generation = 0;
  std::uint64_t boot_epoch = 0;
  std::uint64_t segment_bytes = 0;
  std::uint64_t segments = 0;
  std::uint64_t features_incompatible = 0;
  std::uint64_t features_compatible = 0;
  std::uint64_t head_bytes = kHeadBytes;
  Uuid store{};  // of a member: whose; otherwise zeros

  [[nodiscard]] bool member() const noexcept { return (features_incompatible & kFeatureMember) != 0; }
  // Whether they say the same; which copy each is does not count.
  friend bool operator==(Superblock a, const Superblock& b) noexcept {
    a.copy = b.copy;
    return std::memcmp(&a, &b, sizeof a) == 0;
  }
};
static_assert(sizeof(Superblock) == 104 && std::is_trivially_copyable_v<Superblock>);
static_assert(offsetof(Superblock, uuid) == 16 && offsetof(Superblock, store) == 88);

struct SegmentHeader {
  std::uint64_t magic = kMagicSegment;
  std::uint32_t version = kFormatVersion;
  std::uint32_t segment = 0;
  Uuid uuid{};
  std::uint64_t generation = 0;
  std::uint64_t boot_epoch = 0;
  std::uint64_t segment_bytes = 0;
  std::uint64_t features = 0;
};
static_assert(sizeof(SegmentHeader) == 64 && offsetof(SegmentHeader, generation) == 32);
inline constexpr std::size_t kPageChecksumAt = kPageBytes - 8;   // of structures of one page
inline constexpr std::size_t kRecentAt = sizeof(SegmentHeader);  // u32 count, then that many u32 segment numbers
inline constexpr std::size_t kRecentMax = 1'000;
// u64: the lowest generation among the uses that had a header and no frame yet when this one was written, itself among
// them. What was begun after it has no lower one. 0: not told.
inline constexpr std::size_t kUnopenedAt = 4'072;
static_assert(kRecentAt + 4 + 4 * kRecentMax <= kUnopenedAt && kUnopenedAt + 8 <= kPageChecksumAt);

struct FrameHead {
  std::uint64_t magic = kMagicFrame;
  std::uint64_t generation = 0;
  std::uint64_t boot_epoch = 0;
  std::uint32_t segment = 0;
  std::uint32_t frame_seq = 0;
  std::uint32_t descriptor_bytes = 0;
  std::uint32_t payload_pages = 0;
  std::uint32_t records = 0;
  std::uint16_t schemas = 0;
  std::uint16_t namespaces = 0;
  std::uint64_t reserved = 0;
  std::uint64_t checksum = 0;
};
static_assert(sizeof(FrameHead) == 64 && offsetof(FrameHead, records) == 40 && offsetof(FrameHead, checksum) == 56);

struct SchemaEntry {
  std::uint16_t group = 0;
  std::uint16_t layers = 0;
  std::uint32_t slab_bytes = 0;
  std::uint16_t parts = 0;
  std::uint8_t rule = 0;
  std::uint8_t order_bytes = 0;
  std::uint16_t hit_blocks = 0;
  std::uint16_t reserved0 = 0;
  std::uint32_t block_tokens = 0;
  std::uint32_t reserved1 = 0;
  std::array<char, 64> order{};
};
static_assert(sizeof(SchemaEntry) == 88 && offsetof(SchemaEntry, block_tokens) == 16);

struct NamespaceEntry {
  std::uint8_t tenant_bytes = 0;
  std::uint8_t fingerprint_bytes = 0;
  std::array<std::uint8_t, 6> reserved{};
  std::array<char, 64> tenant{};
  std::array<char, 128> fingerprint{};
};
static_assert(sizeof(NamespaceEntry) == 200 && offsetof(NamespaceEntry, fingerprint) == 72);

struct Descriptor {
  static constexpr std::uint16_t kTombstone = 1;
  static constexpr std::uint16_t kInterleaveShift = 1;
  static constexpr std::uint16_t kInterleaveMask = 3 << kInterleaveShift;
  static constexpr std::uint16_t kFlagsKnown = kTombstone;  // interleaved records are not read by this version

  std::uint64_t key_hi = 0;
  std::uint64_t key_lo = 0;
  std::uint32_t offset = 0;  // pages from the segment's start; tombstone: the removed record's segment
  std::uint32_t length = 0;  // bytes
  std::uint16_t schema = 0;  // positions in the segment's tables
  std::uint16_t flags = 0;
  std::uint16_t shard = 0;
  std::uint16_t name_space = 0;
  std::uint64_t checksum = 0;  // tombstone: the generation of the removed record's segment
  std::uint64_t put_seq = 0;

  [[nodiscard]] bool tombstone() const noexcept { return (flags & kTombstone) != 0; }
  [[nodiscard]] Key key() const noexcept { return {key_hi, key_lo}; }
};
static_assert(sizeof(Descriptor) == 48 && offsetof(Descriptor, schema) == 24 && offsetof(Descriptor, put_seq) == 40);

// What one namespace takes in one segment.
struct NamespaceUsage {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(NamespaceUsage) == 16);

struct FooterTrailer {
  std::uint64_t magic = kMagicFooter;
  std::uint64_t generation = 0;
  std::uint64_t boot_epoch = 0;
  std::uint32_t segment = 0;
  std::uint32_t frames = 0;
  std::uint32_t footer_bytes = 0;
  std::uint32_t records = 0;
  std::uint16_t schemas = 0;
  std::uint16_t namespaces = 0;
  std::uint32_t data_pages = 0;
  std::uint64_t put_seq_max = 0;
  std::uint64_t checksum = 0;
};
static_assert(sizeof(FooterTrailer) == 64 && offsetof(FooterTrailer, checksum) == 56);

// In which use each segment was at an orderly end: a head, then as many entries as there are segments.
struct UseTableHead {
  std::uint64_t magic = kMagicUses;
  std::uint32_t version = kFormatVersion;  // kUseTableServing: with a serial, to be read with the map of changes
  std::uint32_t segments = 0;
  std::uint64_t boot_epoch = 0;  // of the opening that wrote it
  std::uint64_t serial = 0;
  std::array<std::uint64_t, 3> reserved{};
  std::uint64_t checksum = 0;
};
inline constexpr std::uint32_t kUseTableServing = 2;
static_assert(sizeof(UseTableHead) == 64 && offsetof(UseTableHead, checksum) == 56);
struct UseEntry {
  std::uint64_t generation = 0;  // 0: no header counts
  std::uint64_t unopened = 0;    // see kUnopenedAt
  friend bool operator==(const UseEntry&, const UseEntry&) = default;
};
static_assert(sizeof(UseEntry) == 16);
// The map of changes: whose headers may be others than a table of uses says that was written while the store served.
struct ChangeMapHead {
  std::uint64_t magic = kMagicChanges;
  std::uint32_t version = kFormatVersion;
  std::uint32_t segments = 0;
  std::uint64_t boot_epoch = 0;  // of the opening that wrote it
  std::uint64_t serial = 0;      // of the table that it counts from; it is right with the next one, too
  std::array<std::uint64_t, 3> reserved{};
  std::uint64_t checksum = 0;
};
static_assert(sizeof(ChangeMapHead) == 64 && offsetof(ChangeMapHead, checksum) == 56);
inline constexpr std::uint64_t kProbeAt = std::uint64_t{32} << 10;  // a page (store/device_probe.h)
inline constexpr std::uint64_t kChangeMapAt = std::uint64_t{40} << 10;
inline constexpr std::uint64_t kUseTableAt = std::uint64_t{64} << 10;                // behind superblock copy 0
inline constexpr std::uint64_t kUseTableBytesMax = kSuperblockStride - kUseTableAt;  // 61,436 segments

// ---- Encoding and parsing ----

// Seeds of the checksums of one store.
struct FormatSeeds {
  explicit FormatSeeds(const Uuid& uuid) noexcept;
  std::uint64_t segment = 0, frame = 0, footer = 0, uses = 0, changes = 0;
};

// The checksum in the last bytes of a structure of one page: fills it in, and whether it is right.
void seal_page(MutableBytes page, std::uint64_t seed) noexcept;
bool page_checksum_ok(Bytes page, std::uint64_t seed) noexcept;

// Whether segments of a store may be that large.
constexpr bool segment_bytes_ok(std::uint64_t bytes) noexcept {
  return bytes >= kPageBytes * 4 && bytes <= kSegmentBytesMax && std::has_single_bit(bytes);
}

// An identity as text: 8-4-4-4-12 hexadecimal digits.
std::string uuid_text(const Uuid& uuid);

// `page` is one page; everything after the structure is zeroed, the checksum is filled in.
void encode_superblock(MutableBytes page, const Superblock& block) noexcept;
// `recent`: sealed segments, the most recently used first; at most kRecentMax. `unopened`: see kUnopenedAt.
void encode_segment_header(MutableBytes page, const FormatSeeds& seeds, const SegmentHeader& header,
                           std::span<const std::uint32_t> recent, std::uint64_t unopened = 0) noexcept;

// kStale: newer version or unknown incompatible feature (told by the first 16 bytes alone when those are intact).
Result<Superblock> parse_superblock(Bytes page, std::uint32_t copy) noexcept;
Result<SegmentHeader> parse_segment_header(Bytes page, const FormatSeeds& seeds, std::uint32_t segment) noexcept;
// The list of recently used segments in a header page that has been parsed.
std::vector<std::uint32_t> parse_recent(Bytes page);
// What is at kUnopenedAt in one.
std::uint64_t parse_unopened(Bytes page) noexcept;

// Bytes of a table of uses, rounded up to pages.
constexpr std::size_t use_table_bytes(std::size_t segments) noexcept {
  return align_up(sizeof(UseTableHead) + segments * sizeof(UseEntry), kPageBytes);
}
// Requires `area` to be use_table_bytes() of `uses`. `serial` 0: the last that the opening writes; otherwise the n-th
// that it wrote while it served.
void encode_use_table(MutableBytes area, const FormatSeeds& seeds, std::uint64_t boot_epoch,
                      std::span<const UseEntry> uses, std::uint64_t serial = 0) noexcept;
struct UseList {
  std::vector<UseEntry> uses;
  std::uint64_t serial = 0;
};
// The table that this opening has left of so many segments. kCorrupt: there is none, or it is damaged.
Result<UseList> parse_use_table(Bytes area, const FormatSeeds& seeds, std::uint64_t boot_epoch, std::uint32_t segments);

// A bit for each segment, the first the lowest of the first word.
using SegmentBits = std::vector<std::uint64_t>;
constexpr std::size_t segment_words(std::size_t segments) noexcept { return (segments + 63) / 64; }
inline void set_bit(SegmentBits& bits, std::uint32_t at) noexcept { bits[at / 64] |= std::uint64_t{1} << (at % 64); }
inline void clear_bit(SegmentBits& bits, std::uint32_t at) noexcept {
  bits[at / 64] &= ~(std::uint64_t{1} << (at % 64));
}
inline bool has_bit(const SegmentBits& bits, std::uint32_t at) noexcept {
  return (bits[at / 64] >> (at % 64) & 1) != 0;
}
// Bytes of a map of changes, rounded up to pages.
constexpr std::size_t change_map_bytes(std::size_t segments) noexcept {
  return align_up(sizeof(ChangeMapHead) + segment_words(segments) * sizeof(std::uint64_t), kPageBytes);
}
static_assert(kChangeMapAt >= kProbeAt + kPageBytes);
static_assert(kChangeMapAt + change_map_bytes((kUseTableBytesMax - sizeof(UseTableHead)) / sizeof(UseEntry)) <=
              kUseTableAt);
// Requires `area` to be change_map_bytes(segments) and `changed` segment_words(segments) long.
void encode_change_map(MutableBytes area, const FormatSeeds& seeds, std::uint64_t boot_epoch, std::uint64_t serial,
                       std::uint32_t segments, const SegmentBits& changed) noexcept;
struct Changes {
  SegmentBits changed;
  std::uint64_t serial = 0;
};
// The map that this opening has left. kCorrupt: there is none, or it is damaged.
Result<Changes> parse_change_map(Bytes area, const FormatSeeds& seeds, std::uint64_t boot_epoch,
                                 std::uint32_t segments);

// A namespace as named on flash.
struct NamespaceName {
  std::string tenant;
  std::string fingerprint;
  friend bool operator==(const NamespaceName&, const NamespaceName&) = default;
};

// The two tables of a segment and its descriptors, as far as frames or the footer have told them.
struct SegmentContent {
  std::vector<GroupSchema> schemas;
  std::vector<NamespaceName> namespaces;
  std::vector<Descriptor> descriptors;
  std::vector<NamespaceName> spare{};  // of clear(), for add_namespace(): their strings keep their memory

  // Takes the memory for so many descriptors and a few schemas and namespaces with names as long as may be.
  void reserve(std::size_t records);
  // Empties the content without giving up its memory.
  void clear();
  void add_namespace(std::string_view tenant, std::string_view fingerprint);
};

SchemaEntry encode_schema(const GroupSchema& schema) noexcept;
NamespaceEntry encode_namespace(const NamespaceName& name) noexcept;

// Bytes of a descriptor area with these counts, before rounding up to pages.
constexpr std::size_t descriptor_area_bytes(std::size_t schemas, std::size_t namespaces, std::size_t records) noexcept {
  return sizeof(FrameHead) + schemas * sizeof(SchemaEntry) + namespaces * sizeof(NamespaceEntry) +
         records * sizeof(Descriptor);
}
// Bytes of a footer with these counts, rounded up to pages.
constexpr std::size_t footer_bytes(std::size_t schemas, std::size_t namespaces, std::size_t records) noexcept {
  return align_up(schemas * sizeof(SchemaEntry) + namespaces * (sizeof(NamespaceEntry) + sizeof(NamespaceUsage)) +
                      records * sizeof(Descriptor) + sizeof(FooterTrailer),
                  kPageBytes);
}

// The descriptor area of a frame. Requires `area` to be as long as head.descriptor_bytes, which must be the area of
// the counts rounded up to pages; counts in `head` are filled in from the spans, as is the checksum.
void encode_frame(MutableBytes area, const FormatSeeds& seeds, FrameHead head, std::span<const GroupSchema> schemas,
                  std::span<const NamespaceName> namespaces, std::span<const Descriptor> descriptors) noexcept;

// Fill in the checksum of a descriptor area or footer whose other bytes are in place. For the encoders and for tests.
void seal_frame(MutableBytes area, const FormatSeeds& seeds) noexcept;
void seal_footer(MutableBytes area, const FormatSeeds& seeds) noexcept;

// What must be true of the next frame of a segment.
struct FrameExpected {
  std::uint64_t generation = 0;
  std::uint32_t segment = 0;
  std::uint32_t frame_seq = 0;
  std::uint32_t pages_left = 0;  // from the frame's first page to the end of the segment
};
// Parses the frame at the start of `bytes` (kDescriptorAreaMax bytes, fewer only at the segment's end) and appends its
// tables and descriptors to `content`, which is untouched on error. kCorrupt: no such frame.
Result<FrameHead> parse_frame(Bytes bytes, const FormatSeeds& seeds, const FrameExpected& expected,
                              SegmentContent& content);

// The footer of a segment. Requires `area` to be footer_bytes() of the content.
void encode_footer(MutableBytes area, const FormatSeeds& seeds, FooterTrailer trailer, const SegmentContent& content,
                   std::span<const NamespaceUsage> usage) noexcept;
// Reads the trailer at the end of `tail` (the last bytes of a segment, at least a page) without its checksum, to learn
// how long the footer is. kCorrupt: none, or of another segment or generation.
Result<FooterTrailer> peek_footer(Bytes tail, std::uint32_t segment, std::uint64_t generation,
                                  std::uint64_t segment_bytes) noexcept;
// Parses a whole footer (`area` is exactly trailer.footer_bytes).
struct Footer {
  FooterTrailer trailer;
  SegmentContent content;
  std::vector<NamespaceUsage> usage;
};
Result<Footer> parse_footer(Bytes area, const FormatSeeds& seeds, const FooterTrailer& trailer);
// The same into `footer`, whose memory is used again; after an error it holds nothing that counts.
Status parse_footer(Bytes area, const FormatSeeds& seeds, const FooterTrailer& trailer, Footer& footer);

// Whether `d` describes a record that this version can serve: known flags, schema and namespace in the tables, length
// as its schema has it, place inside [1, data_pages) pages. Tombstones: flags and table positions only.
bool servable(const Descriptor& d, const SegmentContent& content, std::uint32_t data_pages) noexcept;

}  // namespace kvd::store
