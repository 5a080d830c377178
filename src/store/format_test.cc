// Tests of the flash format: what is encoded is read back, what is damaged or foreign is refused, tables carry over.
#include "store/format.h"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "block/schema.h"

namespace kvd::store {
namespace {

constexpr std::uint64_t kSegmentBytes = kSegmentBytesMin;

Uuid uuid_of(std::uint8_t seed) {
  Uuid uuid;
  for (std::size_t i = 0; i < uuid.size(); ++i) uuid[i] = static_cast<std::byte>(seed + i);
  return uuid;
}

GroupSchema schema_of(std::uint16_t group) { return {group, 3, 5000, 2, 128, HitRule::kAll, 0, "LBHNC"}; }

std::vector<Descriptor> descriptors_of(std::size_t n, std::uint64_t first_seq) {
  std::vector<Descriptor> all(n);
  for (std::size_t i = 0; i < n; ++i) {
    all[i].key_lo = i;
    all[i].offset = static_cast<std::uint32_t>(2 + i);
    all[i].put_seq = first_seq + i;
  }
  return all;
}

Superblock superblock() {
  Superblock block;
  block.copy = 2;
  block.uuid = uuid_of(1);
  block.generation = 7;
  block.boot_epoch = 5;
  block.segment_bytes = kSegmentBytes;
  block.segments = 9;
  return block;
}

TEST(Superblock, RoundTripsAndRefusesEveryFlippedBit) {
  std::vector<std::byte> page(kPageBytes);
  encode_superblock(page, superblock());
  const auto parsed = parse_superblock(page, 2);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->uuid, uuid_of(1));
  EXPECT_EQ(parsed->boot_epoch, 5u);
  EXPECT_EQ(parsed->segments, 9u);
  EXPECT_EQ(parse_superblock(page, 1).error().code, Code::kCorrupt) << "another copy's place";
  for (std::size_t bit = 0; bit < kPageBytes * 8; ++bit) {
    page[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    EXPECT_FALSE(parse_superblock(page, 2).has_value()) << bit;
    page[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
}

TEST(Superblock, NewerVersionOrUnknownFeatureIsStale) {
  std::vector<std::byte> page(kPageBytes);
  auto block = superblock();
  block.version = kFormatVersion + 1;
  encode_superblock(page, block);
  page[100] = std::byte{1};  // a newer version may use other bytes and another checksum
  EXPECT_EQ(parse_superblock(page, 2).error().code, Code::kStale);
  block = superblock();
  block.features_incompatible = 2;
  encode_superblock(page, block);
  EXPECT_EQ(parse_superblock(page, 2).error().code, Code::kStale);
  block = superblock();
  block.features_compatible = 1;
  encode_superblock(page, block);
  EXPECT_TRUE(parse_superblock(page, 2).has_value());
}

TEST(Superblock, AMemberSaysWhose) {
  std::vector<std::byte> page(kPageBytes);
  auto block = superblock();
  EXPECT_FALSE(block.member());
  block.features_incompatible = kFeatureMember;
  encode_superblock(page, block);
  EXPECT_EQ(parse_superblock(page, 2).error().code, Code::kCorrupt) << "of no store";
  block.store = uuid_of(7);
  encode_superblock(page, block);
  ASSERT_TRUE(parse_superblock(page, 2).has_value());
  EXPECT_TRUE(parse_superblock(page, 2)->member());
  EXPECT_EQ(parse_superblock(page, 2)->store, uuid_of(7));
}

TEST(SegmentHeader, BelongsToOneStoreAndOneSegment) {
  const FormatSeeds seeds(uuid_of(1));
  std::vector<std::byte> page(kPageBytes);
  SegmentHeader header;
  header.segment = 4;
  header.generation = 99;
  const std::vector<std::uint32_t> recent{3, 1, 0};
  encode_segment_header(page, seeds, header, recent);
  EXPECT_EQ(parse_recent(page), recent);
  EXPECT_EQ(parse_unopened(page), 0u) << "not told";
  encode_segment_header(page, seeds, header, recent, 97);
  EXPECT_EQ(parse_unopened(page), 97u);
  EXPECT_EQ(parse_recent(page), recent);
  ASSERT_TRUE(parse_segment_header(page, seeds, 4).has_value());
  EXPECT_EQ(parse_segment_header(page, seeds, 4)->generation, 99u);
  EXPECT_FALSE(parse_segment_header(page, seeds, 5).has_value());
  EXPECT_FALSE(parse_segment_header(page, FormatSeeds(uuid_of(2)), 4).has_value());
  page[4000] ^= std::byte{8};
  EXPECT_FALSE(parse_segment_header(page, seeds, 4).has_value());
}

class FrameTest : public ::testing::Test {
 protected:
  // A frame of segment 4, generation 99.
  std::vector<std::byte> encode(std::uint32_t seq, std::span<const GroupSchema> schemas,
                                std::span<const NamespaceName> names, std::span<const Descriptor> descriptors) {
    FrameHead head;
    head.generation = 99;
    head.segment = 4;
    head.frame_seq = seq;
    head.payload_pages = 10;
    head.descriptor_bytes = static_cast<std::uint32_t>(
        align_up(descriptor_area_bytes(schemas.size(), names.size(), descriptors.size()), kPageBytes));
    std::vector<std::byte> area(head.descriptor_bytes, std::byte{0xEE});
    encode_frame(area, seeds_, head, schemas, names, descriptors);
    return area;
  }

  FormatSeeds seeds_{uuid_of(1)};
  FrameExpected expected_{99, 4, 0, 1000};
};

TEST_F(FrameTest, FramesTogetherTellTheTables) {
  const std::vector<GroupSchema> first{schema_of(0)}, second{schema_of(1)};
  const std::vector<NamespaceName> names{{"tenant", std::string("\0\1\2", 3)}};
  SegmentContent content;
  auto head = parse_frame(encode(0, first, names, descriptors_of(90, 1)), seeds_, expected_, content);
  ASSERT_TRUE(head.has_value());
  EXPECT_EQ(head->descriptor_bytes, 2 * kPageBytes);
  expected_.frame_seq = 1;
  ASSERT_TRUE(parse_frame(encode(1, second, {}, descriptors_of(2, 91)), seeds_, expected_, content).has_value());
  EXPECT_EQ(content.schemas, (std::vector<GroupSchema>{schema_of(0), schema_of(1)}));
  EXPECT_EQ(content.namespaces, names);
  ASSERT_EQ(content.descriptors.size(), 92u);
  EXPECT_EQ(content.descriptors[91].put_seq, 92u);
}

TEST_F(FrameTest, IsRefusedAtAnotherPlaceOrTime) {
  const auto area = encode(0, {}, {}, descriptors_of(1, 1));
  SegmentContent content;
  for (const FrameExpected other : {FrameExpected{98, 4, 0, 1000}, FrameExpected{99, 3, 0, 1000},
                                    FrameExpected{99, 4, 1, 1000}, FrameExpected{99, 4, 0, 10}})
    EXPECT_FALSE(parse_frame(area, seeds_, other, content).has_value());
  EXPECT_FALSE(parse_frame(area, FormatSeeds(uuid_of(3)), expected_, content).has_value());
  EXPECT_FALSE(parse_frame(Bytes(area).first(kPageBytes - 1), seeds_, expected_, content).has_value());
  EXPECT_TRUE(content.descriptors.empty());
  expected_.pages_left = 11;
  EXPECT_TRUE(parse_frame(area, seeds_, expected_, content).has_value());
}

TEST_F(FrameTest, EveryFlippedBitIsNoticed) {
  auto area = encode(0, std::vector{schema_of(0)}, std::vector{NamespaceName{"t", "f"}}, descriptors_of(20, 1));
  for (std::size_t bit = 0; bit < area.size() * 8; bit += 3) {
    area[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    SegmentContent content;
    EXPECT_FALSE(parse_frame(area, seeds_, expected_, content).has_value()) << bit;
    area[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
}

TEST_F(FrameTest, HoldsAThousandRecordsWithTheirTables) {
  EXPECT_LE(descriptor_area_bytes(20, 50, kFrameRecordsMax), kDescriptorAreaMax);
}

class FooterTest : public ::testing::Test {
 protected:
  FooterTest() {
    content_.schemas = {schema_of(0), schema_of(7)};
    content_.namespaces = {{"a", "m"}, {"b", "n"}};
    content_.descriptors = descriptors_of(200, 5);
    usage_ = {{150, 150 << 12}, {50, 50 << 12}};
    FooterTrailer trailer;
    trailer.generation = 99;
    trailer.segment = 4;
    trailer.frames = 3;
    trailer.data_pages = 700;
    trailer.put_seq_max = 204;
    area_.resize(footer_bytes(2, 2, 200));
    encode_footer(area_, seeds_, trailer, content_, usage_);
  }
  Result<FooterTrailer> peek() { return peek_footer(Bytes(area_).last(kPageBytes), 4, 99, kSegmentBytes); }

  FormatSeeds seeds_{uuid_of(1)};
  SegmentContent content_;
  std::vector<NamespaceUsage> usage_;
  std::vector<std::byte> area_;
};

TEST_F(FooterTest, RoundTrips) {
  const auto trailer = peek();
  ASSERT_TRUE(trailer.has_value());
  EXPECT_EQ(trailer->footer_bytes, area_.size());
  const auto footer = parse_footer(area_, seeds_, *trailer);
  ASSERT_TRUE(footer.has_value());
  EXPECT_EQ(footer->content.schemas, content_.schemas);
  EXPECT_EQ(footer->content.namespaces, content_.namespaces);
  EXPECT_EQ(footer->content.descriptors.size(), 200u);
  EXPECT_EQ(footer->content.descriptors[199].put_seq, 204u);
  EXPECT_EQ(footer->usage[1].records, 50u);
  EXPECT_EQ(footer->trailer.put_seq_max, 204u);
}

TEST_F(FooterTest, BelongsToOneUseOfOneSegment) {
  const auto tail = Bytes(area_).last(kPageBytes);
  EXPECT_FALSE(peek_footer(tail, 3, 99, kSegmentBytes).has_value());
  EXPECT_FALSE(peek_footer(tail, 4, 98, kSegmentBytes).has_value());
  EXPECT_FALSE(peek_footer(tail, 4, 99, 700 * kPageBytes + area_.size() - 1).has_value()) << "overlaps its data";
  EXPECT_FALSE(parse_footer(area_, FormatSeeds(uuid_of(9)), *peek()).has_value());
}

TEST_F(FooterTest, EveryFlippedBitIsNoticed) {
  for (std::size_t bit = 0; bit < area_.size() * 8; bit += 5) {
    area_[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    const auto trailer = peek();
    if (trailer) {
      const bool sized = trailer->footer_bytes == area_.size();
      EXPECT_FALSE(sized && parse_footer(area_, seeds_, *trailer).has_value()) << bit;
    }
    area_[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
}

TEST(Servable, RefusesWhatItsTablesAndItsSegmentDoNotHold) {
  SegmentContent content;
  content.schemas = {schema_of(0)};
  content.namespaces = {{"a", "m"}};
  Descriptor good;
  good.offset = 2;
  good.length = static_cast<std::uint32_t>(block::shape_of(schema_of(0), true).record_bytes());
  const std::uint32_t pages = good.length / 4096;
  EXPECT_TRUE(servable(good, content, 2 + pages));
  EXPECT_FALSE(servable(good, content, 1 + pages));
  const auto bad = [&](auto change) {
    Descriptor d = good;
    change(d);
    return !servable(d, content, 2 + pages);
  };
  EXPECT_TRUE(bad([](Descriptor& d) { d.offset = 0; }));
  EXPECT_TRUE(bad([](Descriptor& d) { d.offset = UINT32_MAX; }));
  EXPECT_TRUE(bad([](Descriptor& d) { d.length -= 4096; }));
  EXPECT_TRUE(bad([](Descriptor& d) { d.schema = 1; }));
  EXPECT_TRUE(bad([](Descriptor& d) { d.name_space = 1; }));
  EXPECT_TRUE(bad([](Descriptor& d) { d.flags = 1 << Descriptor::kInterleaveShift; }));
  EXPECT_TRUE(bad([](Descriptor& d) { d.flags = 0x8000; }));
}

}  // namespace
}  // namespace kvd::store
