// Reading a segment's footer, its frames and its records, from wherever its bytes come: what recovery does with them
// and what `kvdepot inspect` and `kvdepot verify` show are decoded by the same code. Parsers are in store/format.h;
// here is in which order they are asked. No state, any thread.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "block/schema.h"
#include "store/format.h"

namespace kvd::store {

// Reads `to` from `offset`, both in bytes from the segment's start and multiples of 4 KiB.
using ReadSegment = std::function<Status(std::uint64_t offset, MutableBytes to)>;

// One use of one segment of a store.
struct SegmentUse {
  std::uint32_t segment = 0;
  std::uint64_t generation = 0;
  std::uint64_t segment_bytes = 0;
  [[nodiscard]] std::uint32_t pages() const noexcept { return static_cast<std::uint32_t>(segment_bytes / kPageBytes); }
};

// The footer of this use. kCorrupt: there is none, or it is damaged; kIo.
Result<Footer> read_footer(const ReadSegment& read, const FormatSeeds& seeds, const SegmentUse& use);

// Called with each frame that counts: its head, where it begins, and the first of its descriptors in the content.
using OnFrame = std::function<void(const FrameHead& head, std::uint32_t page, std::size_t first_descriptor)>;

// Parses frames from page 1 on, adding what they tell to `content`, until one does not count (read twice, as errors may
// pass) or `frames_max` have. What was found:
struct FramesFound {
  std::uint32_t frames = 0;
  std::uint32_t end_page = 1;  // after the last one
  bool cut_short = false;      // what follows could not be read: the segment may hold more
};
FramesFound walk_frames(const ReadSegment& read, const FormatSeeds& seeds, const SegmentUse& use,
                        std::uint32_t frames_max, SegmentContent& content, const OnFrame& on_frame);

// A record whose bytes are what was put.
struct CheckedRecord {
  block::RecordShape shape;
  Bytes foreign;  // in the image; empty for a native key
};
// `image` is what lies at the place of `d`, d.length bytes; `d` is servable(). kCorrupt names the part that is not what
// was written.
Result<CheckedRecord> check_record(Bytes image, const Descriptor& d, const SegmentContent& content);

}  // namespace kvd::store
