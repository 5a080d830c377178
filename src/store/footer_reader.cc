#include "store/footer_reader.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvd::store {

FooterReader::FooterReader(io::Loop& loop, std::vector<Wanted> uses)
    : loop_(loop), uses_(std::move(uses)), slots_(std::min(uses_.size(), kAhead)) {
  for (Slot& slot : slots_)
    slot.tail = AlignedBuffer(std::min<std::size_t>(kTailBytes, uses_.front().use.segment_bytes));
}

FooterReader::~FooterReader() {
  while (pending_ > 0) loop_.run_once(Duration::max());
}

Result<Footer*> FooterReader::next() {
  KVD_CHECK(taken_ < uses_.size());
  start_more();
  Slot& slot = slot_of(taken_);
  const FlashDevice& device = *uses_[taken_].device;
  while (slot.step != Step::kDone) loop_.run_once(Duration::max());
  ++taken_;
  if (!slot.status) return fail(slot.status.error());
  AlignedBuffer whole = std::exchange(slot.whole, AlignedBuffer());
  long_bytes_ -= whole.size();
  const std::size_t bytes = slot.trailer.footer_bytes;
  const Status parsed = parse_footer(whole.size() > 0 ? whole.first(bytes) : Bytes(slot.tail.span()).last(bytes),
                                     device.volume.seeds(), slot.trailer, footer_);
  if (whole.size() > spare_.size()) spare_ = std::move(whole);
  if (!parsed) return fail(parsed.error());
  return &footer_;
}

// What there is room for. The one that is taken next is read whatever it takes.
void FooterReader::start_more() {
  for (std::size_t use = taken_; use < started_; ++use) {
    Slot& slot = slot_of(use);
    if (slot.step != Step::kWaits) continue;
    if (use > taken_ && long_bytes_ + slot.trailer.footer_bytes > kLongBytes) break;
    slot.step = Step::kWhole;
    if (spare_.size() >= slot.trailer.footer_bytes) slot.whole = std::exchange(spare_, AlignedBuffer());
    slot.whole.grow(slot.trailer.footer_bytes);
    long_bytes_ += slot.whole.size();
    read(use, slot.whole.first(slot.trailer.footer_bytes));
  }
  while (started_ < uses_.size() && started_ < taken_ + slots_.size()) {
    Slot& slot = slot_of(started_);
    slot.step = Step::kTail;
    read(started_, slot.tail.span());
    ++started_;
  }
}

void FooterReader::read(std::size_t use, MutableBytes to) {
  Slot& slot = slot_of(use);
  slot.buffer = {to.data(), to.size()};
  const auto& [device, of] = uses_[use];
  slot.op.offset = device->volume.offset_of(of.segment) + of.segment_bytes - to.size();
  slot.op.buffers = {&slot.buffer, 1};
  slot.op.on_done = [this, use](const Status& status) {
    --pending_;
    landed(use, status);
  };
  ++pending_;
  device->submit(slot.op);
}

void FooterReader::landed(std::size_t use, const Status& status) {
  Slot& slot = slot_of(use);
  const bool whole = std::exchange(slot.step, Step::kDone) == Step::kWhole;
  slot.status = status;
  if (!status || whole) return;
  const SegmentUse& of = uses_[use].use;
  const auto trailer = peek_footer(slot.tail.span(), of.segment, of.generation, of.segment_bytes);
  if (!trailer) {
    slot.status = fail(trailer.error());
    return;
  }
  slot.trailer = *trailer;
  if (trailer->footer_bytes <= slot.tail.size()) return;
  slot.step = Step::kWaits;
  start_more();
}

}  // namespace kvd::store
