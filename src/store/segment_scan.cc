#include "store/segment_scan.h"

#include <algorithm>

#include "block/checksum.h"
#include "store/aligned_buffer.h"

namespace kvd::store {

Result<Footer> read_footer(const ReadSegment& read, const FormatSeeds& seeds, const SegmentUse& use) {
  std::size_t bytes = std::min<std::size_t>(kDescriptorAreaMax, use.segment_bytes);
  for (;;) {
    const AlignedBuffer tail(bytes);
    if (auto status = read(use.segment_bytes - bytes, tail.span()); !status) return fail(status.error());
    const auto trailer = peek_footer(tail.span(), use.segment, use.generation, use.segment_bytes);
    if (!trailer) return fail(trailer.error());
    if (trailer->footer_bytes <= bytes)
      return parse_footer(Bytes(tail.span()).last(trailer->footer_bytes), seeds, *trailer);
    bytes = trailer->footer_bytes;
  }
}

FramesFound walk_frames(const ReadSegment& read, const FormatSeeds& seeds, const SegmentUse& use,
                        std::uint32_t frames_max, SegmentContent& content, const OnFrame& on_frame) {
  FramesFound found;
  FrameExpected expected{use.generation, use.segment, 0, 0};
  const AlignedBuffer area(kDescriptorAreaMax);
  while (found.frames < frames_max && found.end_page < use.pages()) {
    expected.pages_left = use.pages() - found.end_page;
    const std::size_t bytes = std::min<std::size_t>(kDescriptorAreaMax, std::size_t{expected.pages_left} * kPageBytes);
    const std::size_t first = content.descriptors.size();
    const auto read_frame = [&]() -> Result<FrameHead> {
      const Status status = read(std::uint64_t{found.end_page} * kPageBytes, area.first(bytes));
      found.cut_short = !status;
      if (!status) return fail(status.error());
      return parse_frame(area.first(bytes), seeds, expected, content);
    };
    auto head = read_frame();
    if (!head) head = read_frame();
    if (!head) break;
    on_frame(*head, found.end_page, first);
    found.end_page += static_cast<std::uint32_t>(head->descriptor_bytes / kPageBytes) + head->payload_pages;
    ++found.frames;
    ++expected.frame_seq;
  }
  return found;
}

Result<CheckedRecord> check_record(Bytes image, const Descriptor& d, const SegmentContent& content) {
  const GroupSchema& schema = content.schemas[d.schema];
  CheckedRecord record;
  record.shape = block::shape_of(schema, true);
  if (record.shape.record_bytes() != d.length) record.shape = block::shape_of(schema, false);
  if (record.shape.record_bytes() != d.length || image.size() != d.length)
    return fail(Code::kCorrupt, "has another length than its schema");
  const std::uint64_t seed = block::record_seed({d.key(), d.shard, schema.group}, record.shape);
  const auto slab = [&](std::uint32_t layer) {
    return block::slab_checksum(seed, layer, image.subspan(record.shape.slab_offset(layer), record.shape.slab_bytes));
  };
  if (record.shape.table_bytes == 0) {
    if (slab(0) != d.checksum) return fail(Code::kCorrupt, "its payload is damaged");
    return record;
  }
  const auto table = block::decode_table(image.first(record.shape.table_bytes), seed, record.shape);
  if (!table || table->checksum != d.checksum) return fail(Code::kCorrupt, "its table is damaged");
  for (std::uint32_t layer = 0; layer < record.shape.layers; ++layer)
    if (slab(layer) != table->slabs[layer]) return fail(Code::kCorrupt, "its payload is damaged");
  record.foreign = table->foreign;
  return record;
}

}  // namespace kvd::store
