#include "store/segment_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error_text.h"
#include "store/aligned_buffer.h"
#include "store/segment_scan.h"

namespace kvd::store {
namespace {

// Reads one segment; collects what it finds in `report`.
class SegmentWalk {
 public:
  SegmentWalk(const StoreReader& reader, SegmentReport& report)
      : reader_(reader), report_(report), read_([this](std::uint64_t offset, MutableBytes to) {
          return reader_.read(reader_.offset_of(report_.segment) + offset, to);
        }) {}
  SegmentWalk(const SegmentWalk&) = delete;
  SegmentWalk& operator=(const SegmentWalk&) = delete;

  void run(bool frames);

 private:
  void read_header();
  void judge_bad_header(const Error& error);
  Result<Footer> read_footer(std::uint64_t generation);
  // What lies at the end of a segment without a footer of its generation: an older one, nothing, or a damaged one.
  void judge_tail(std::uint32_t end_page);
  FramesFound walk_frames(std::uint32_t frames_max, SegmentContent& content);
  void check_frames();
  // Whether a frame of this use begins at `page`, complete or not.
  [[nodiscard]] bool frame_begun_at(std::uint32_t page);
  void scan();
  [[nodiscard]] FooterTrailer trailer_at_tail();

  void note(std::string what) { report_.findings.push_back({false, report_.segment, std::move(what)}); }
  void damage(std::string what) { report_.findings.push_back({true, report_.segment, std::move(what)}); }

  const StoreReader& reader_;
  SegmentReport& report_;
  const ReadSegment read_;
  AlignedBuffer page_{kPageBytes};
};

void SegmentWalk::run(bool frames) {
  read_header();
  if (!report_.holds_records()) return;
  auto footer = read_footer(report_.header.generation);
  if (footer) {
    report_.footer = std::move(*footer);
    if (frames) check_frames();
    return;
  }
  if (report_.kind == SegmentKind::kSealed) report_.kind = SegmentKind::kUnsealed;
  scan();
}

void SegmentWalk::read_header() {
  const MutableBytes page = page_.span();
  if (auto status = reader_.read(reader_.offset_of(report_.segment), page); !status) {
    report_.kind = SegmentKind::kMissing;
    return damage("header cannot be read: " + error_text(status.error()));
  }
  const auto header = parse_segment_header(page, reader_.seeds(), report_.segment);
  if (!header) return judge_bad_header(header.error());
  report_.header = *header;
  report_.recent = parse_recent(page);
  report_.kind = SegmentKind::kSealed;
  if ((header->features & ~kFeaturesKnown) == 0) return;
  report_.kind = SegmentKind::kRefused;
  note("uses a feature of a newer version of kvdepot; its records are not served");
}

// A segment that was never used holds zeros or whatever the device held before; one that was carries our marks.
void SegmentWalk::judge_bad_header(const Error& error) {
  if (error.code == Code::kStale) {
    report_.kind = SegmentKind::kLost;
    return note("was written by a newer version of kvdepot; nothing in it is served");
  }
  const auto header = load<SegmentHeader>(page_.data());
  const bool ours = header.magic == kMagicSegment && header.uuid == reader_.superblock().uuid;
  const FooterTrailer trailer = trailer_at_tail();
  const bool content = trailer.magic == kMagicFooter && read_footer(trailer.generation).has_value();
  if (!ours && !content) return;
  report_.kind = SegmentKind::kLost;
  damage("header is damaged: nothing in this segment can be served");
}

FooterTrailer SegmentWalk::trailer_at_tail() {
  const MutableBytes page = page_.span();
  const std::uint64_t end = reader_.offset_of(report_.segment) + reader_.segment_bytes();
  if (!reader_.read(end - kPageBytes, page)) return {.magic = 0};
  return load<FooterTrailer>(page.data() + kPageBytes - sizeof(FooterTrailer));
}

Result<Footer> SegmentWalk::read_footer(std::uint64_t generation) {
  return store::read_footer(read_, reader_.seeds(), {report_.segment, generation, reader_.segment_bytes()});
}

FramesFound SegmentWalk::walk_frames(std::uint32_t frames_max, SegmentContent& content) {
  return store::walk_frames(read_, reader_.seeds(),
                            {report_.segment, report_.header.generation, reader_.segment_bytes()}, frames_max, content,
                            [](const FrameHead&, std::uint32_t, std::size_t) {});
}

// The footer speaks for its frames, so a damaged frame loses nothing while the footer is there.
void SegmentWalk::check_frames() {
  SegmentContent content;
  const FramesFound found = walk_frames(report_.footer.trailer.frames, content);
  if (found.frames == report_.footer.trailer.frames) return;
  damage(fmt::format("frame {} of {} at page {} is damaged; the footer still lists its records", found.frames,
                     report_.footer.trailer.frames, found.end_page));
}

void SegmentWalk::scan() {
  Footer& footer = report_.footer;
  const FramesFound found = walk_frames(UINT32_MAX, footer.content);
  const std::uint32_t frames = found.frames, page = found.end_page;
  footer.trailer.segment = report_.segment;
  footer.trailer.generation = report_.header.generation;
  footer.trailer.frames = frames;
  footer.trailer.data_pages = page;
  footer.trailer.records = static_cast<std::uint32_t>(footer.content.descriptors.size());
  for (const Descriptor& d : footer.content.descriptors)
    footer.trailer.put_seq_max = std::max(footer.trailer.put_seq_max, d.put_seq);
  if (frames > 0) note(fmt::format("has no footer; {} frames were found", frames));
  const bool more = frame_begun_at(page);
  if (more) note(fmt::format("frame {} at page {} was not finished, or is damaged", frames, page));
  judge_tail(page);
  // Begun and never used: free at the next start.
  if (frames == 0 && report_.findings.empty()) report_.kind = SegmentKind::kFree;
}

bool SegmentWalk::frame_begun_at(std::uint32_t page) {
  if (page >= reader_.segment_pages()) return false;
  if (!reader_.read(reader_.offset_of(report_.segment, page), page_.span())) return true;
  const auto head = load<FrameHead>(page_.data());
  return head.magic == kMagicFrame && head.segment == report_.segment && head.generation == report_.header.generation;
}

void SegmentWalk::judge_tail(std::uint32_t end_page) {
  const FooterTrailer trailer = trailer_at_tail();
  const bool magic = trailer.magic == kMagicFooter;
  const bool same_use = trailer.generation == report_.header.generation && trailer.segment == report_.segment;
  if (same_use) return damage("footer is damaged; what is listed comes from the frames");
  if (!magic || read_footer(trailer.generation)) return;
  // An older footer, which frames of this use may have begun to overwrite.
  const std::uint64_t pages = trailer.footer_bytes / kPageBytes;
  if (pages <= reader_.segment_pages() && end_page <= reader_.segment_pages() - pages)
    damage("footer is damaged; what is listed comes from the frames");
}

}  // namespace

std::string Finding::line() const {
  std::string where = device.empty() ? "" : device + ": ";
  if (segment != kWholeStore) where += fmt::format("segment {}: ", segment);
  return fmt::format("{}: {}{}", damage ? "damage" : "note", where, what);
}

const char* kind_name(SegmentKind kind) noexcept {
  switch (kind) {
    case SegmentKind::kFree: return "free";
    case SegmentKind::kSealed: return "sealed";
    case SegmentKind::kUnsealed: return "unsealed";
    case SegmentKind::kRefused: return "newer";
    case SegmentKind::kLost: return "lost";
    case SegmentKind::kMissing: return "missing";
  }
  return "";
}

SegmentReport read_segment(const StoreReader& reader, std::uint32_t segment, bool frames) {
  SegmentReport report;
  report.segment = segment;
  SegmentWalk(reader, report).run(frames);
  return report;
}

}  // namespace kvd::store
