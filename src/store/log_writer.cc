#include "store/log_writer.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error_text.h"

namespace kvd::store {

LogWriter::LogWriter(Flash& flash, FlashDevice& device, Evictor& evictor, SyncQueue& syncs)
    : flash_(flash), device_(device), evictor_(evictor), syncs_(syncs) {
  for (Frame& frame : frames_) free_.push_back(&frame);
}

void LogWriter::reserve() {
  const std::size_t records = flash_.records_per_segment();
  closing_.reserve(kSegmentsMax);
  for (std::size_t i = 0; i < kSegmentsMax; ++i) {
    spare_segments_.push_back(std::make_unique<OpenSegment>(flash_.segment_pages(), records));
    spare_closings_.push_back(std::make_unique<Closing>());
    spare_closings_.back()->footer.grow(footer_bytes(1, 1, records));
  }
}

Frame* LogWriter::begin_frame() {
  if (!device_.health.on() || free_.empty()) return nullptr;
  if (takes_no_more_tombstones()) roll();
  if (current_ == nullptr) {
    if (spare_segments_.empty()) return nullptr;
    const auto next = device_.segments.open_next(device_.tombstones.carrying());
    evictor_.maintain();
    if (!next) return nullptr;
    current_ = std::move(spare_segments_.back());
    spare_segments_.pop_back();
    current_->reset(*next, flash_.segments.at(*next).generation);
  }
  Frame* frame = free_.back();
  free_.pop_back();
  frame->reset(*current_, flash_.namespaces, device_);
  return frame;
}

bool LogWriter::index_waits() const {
  if (flash_.index.size() < flash_.index.records_max()) return false;
  const bool footer_first = !closing_.empty() && device_.segments.count_in(SegmentState::kSealed) == 0;
  return footer_first || evictor_.index_room_waits();
}

// Not while it may be all that takes tombstones which have to be carried.
bool LogWriter::takes_no_more_tombstones() const {
  return current_ != nullptr && device_.segments.ready_count() > 1 &&
         device_.tombstones.fills(current_->id, flash_.tombstones_spent_max);
}

void LogWriter::give_back(Frame& frame) {
  KVD_CHECK(frame.empty());
  free_.push_back(&frame);
}

void LogWriter::submit(Frame& frame) {
  frame.lay_out();
  for (const NamespaceHandle ns : frame.new_namespaces()) flash_.hold_namespace(current_->id, ns);
  current_->in_flight.push_back(&frame);
  ++in_flight_;
  frame.op.on_done = [this, &frame](Status status) { frame_done(frame, status); };
  device_.submit(frame.op);
}

void LogWriter::frame_done(Frame& frame, const Status& status) {
  frame.done = true;
  frame.status = status;
  OpenSegment& segment = frame.segment();
  if (!status && !segment.broken) {
    flash_.log.warn(fmt::format("store: writing to segment {} failed ({}); it is closed early", segment.id,
                                error_text(status.error())));
    segment.broken = true;
    if (current_.get() == &segment) roll();
  }
  settle(segment);
}

void LogWriter::settle(OpenSegment& segment) {
  bool failed = segment.frames_failed;
  while (!segment.in_flight.empty() && segment.in_flight.front()->done) {
    Frame& frame = *segment.in_flight.front();
    segment.in_flight.erase(segment.in_flight.begin());
    --in_flight_;
    failed = segment.frames_failed = failed || !frame.status;
    if (failed) {
      on_frame_(frame, frame.status ? Status(fail(Code::kIo, "an earlier frame of the segment failed")) : frame.status);
    } else {
      frame.enter_content();
      device_.segments.completed(segment.id, segment.completed_page);
      on_frame_(frame, frame.status);
    }
    free_.push_back(&frame);
  }
  if (!segment.closed || !segment.in_flight.empty()) return;
  const auto at =
      std::ranges::find_if(closing_, [&](const auto& closing) { return closing->segment.get() == &segment; });
  finish(**at);
}

void LogWriter::visit_in_flight(const std::function<void(const Frame&)>& visit) const {
  const auto all_of = [&](const OpenSegment& segment) {
    for (const Frame* frame : segment.in_flight) visit(*frame);
  };
  if (current_ != nullptr) all_of(*current_);
  for (const auto& closing : closing_) all_of(*closing->segment);
}

void LogWriter::roll() {
  if (current_ == nullptr) return;
  auto closing = std::move(spare_closings_.back());  // there are as many as segments
  spare_closings_.pop_back();
  closing->segment = std::move(current_);
  OpenSegment& segment = *closing->segment;
  segment.closed = true;
  flash_.segments.change(segment.id, SegmentState::kSealing);
  closing_.push_back(std::move(closing));
  if (segment.in_flight.empty()) finish(*closing_.back());
}

bool LogWriter::without_footer(const OpenSegment& segment) const {
  return segment.content.descriptors.empty() || flash_.segments.at(segment.id).unflushed || !device_.health.on();
}

// What a failed flush has lost no later one brings back. Called from inside a failed one, too: then it asks for none.
void LogWriter::finish(Closing& closing) {
  if (without_footer(*closing.segment)) return sealed(closing, {});
  syncs_.request([this, &closing](const Status& status) {
    status && !without_footer(*closing.segment) ? write_footer(closing) : sealed(closing, status);
  });
}

void LogWriter::write_footer(Closing& closing) {
  const OpenSegment& segment = *closing.segment;
  const SegmentContent& content = segment.content;
  FooterTrailer trailer;
  trailer.generation = segment.generation;
  trailer.boot_epoch = device_.volume.boot_epoch();
  trailer.segment = device_.local(segment.id);
  trailer.frames = segment.frames_completed;
  trailer.data_pages = segment.completed_page;
  trailer.put_seq_max = segment.put_seq_max;
  const std::size_t bytes = footer_bytes(content.schemas.size(), content.namespaces.size(), content.descriptors.size());
  closing.footer.grow(bytes);
  encode_footer(closing.footer.first(bytes), device_.volume.seeds(), trailer, content, segment.usage);
  closing.buffer = {closing.footer.data(), bytes};
  closing.op.kind = io::DiskOp::Kind::kWrite;
  closing.op.offset = device_.offset_of(segment.id) + flash_.segment_bytes() - bytes;
  closing.op.buffers = {&closing.buffer, 1};
  closing.op.on_done = [this, &closing](Status status) { sealed(closing, status); };
  device_.submit(closing.op);
}

// A footer that could not be written costs a scan at the next start; frames that failed are buried already (Demoter).
void LogWriter::sealed(const Closing& closing, const Status& status) {
  const OpenSegment& segment = *closing.segment;
  if (!status)
    flash_.log.warn(
        fmt::format("store: the footer of segment {} was not written: {}", segment.id, error_text(status.error())));
  flash_.segments.seal(segment.id, segment.content.descriptors.empty() || flash_.usage.spent(segment.id));
  const auto at = std::ranges::find_if(closing_, [&](const auto& other) { return other.get() == &closing; });
  spare_segments_.push_back(std::move((*at)->segment));
  spare_closings_.push_back(std::move(*at));
  closing_.erase(at);
  evictor_.segment_sealed();
}

}  // namespace kvd::store
