#include "store/use_table.h"

#include <utility>

#include "base/check.h"
#include "store/blocking_disk.h"

namespace kvd::store {

void list_uses(const Flash& flash, const FlashDevice& device, std::vector<UseEntry>& uses) {
  uses.clear();
  for (std::uint32_t s = 0; s < device.volume.segments(); ++s) {  // fewer than there were, where it was made smaller
    const Segment& segment = flash.segments.at(device.numbered(s));
    uses.push_back({segment.generation, segment.unopened});
  }
}

bool UseTable::possible() const noexcept {
  return !device_.unlisted && use_table_bytes(device_.volume.segments()) <= kUseTableBytesMax;
}

void UseTable::write(std::function<void()> on_done) {
  KVD_CHECK(possible() && !device_.writing());
  device_.end_writing();
  on_done_ = std::move(on_done);
  std::vector<UseEntry> uses;
  list_uses(flash_, device_, uses);
  area_ = AlignedBuffer(use_table_bytes(uses.size()));
  encode_use_table(area_.span(), device_.volume.seeds(), device_.volume.boot_epoch(), uses);
  buffer_ = {area_.data(), area_.size()};
  submit(io::DiskOp::Kind::kWrite, [this](const Status& written) {
    if (!written) return on_done_();
    submit(io::DiskOp::Kind::kSync, [this](const Status&) { on_done_(); });
  });
}

// Past FlashDevice, which writes nothing any more.
void UseTable::submit(io::DiskOp::Kind kind, std::move_only_function<void(Status)> on_done) {
  op_.kind = kind;
  op_.offset = kUseTableAt;
  op_.buffers = kind == io::DiskOp::Kind::kWrite ? std::span<const iovec>(&buffer_, 1) : std::span<const iovec>();
  op_.on_done = std::move(on_done);
  if (device_.volume.disk().submit(op_)) return;
  refused_.arm(flash_.loop.now());
}

std::optional<UseTable::Left> UseTable::read(Flash& flash, FlashDevice& device) {
  const std::uint32_t segments = device.segments.count();
  const std::size_t bytes = use_table_bytes(segments);
  if (bytes > kUseTableBytesMax) return std::nullopt;
  const FormatSeeds& seeds = device.volume.seeds();
  const std::uint64_t before = device.volume.previous_epoch();
  const AlignedBuffer area(bytes);
  BlockingDisk disk(flash.loop, device.volume.disk(), &device.health, &flash.stats.io_errors);
  if (!disk.read(kUseTableAt, area.span())) return std::nullopt;
  auto list = parse_use_table(area.span(), seeds, before, segments);
  if (!list) return std::nullopt;
  if (list->serial == 0) return Left{std::move(list->uses), SegmentBits(segment_words(segments))};
  const MutableBytes page = area.first(change_map_bytes(segments));
  if (!disk.read(kChangeMapAt, page)) return std::nullopt;
  auto changes = parse_change_map(page, seeds, before, segments);
  // A map counts for its table and the next one; beyond that it may have lost bits, or does not have them yet.
  if (!changes || (changes->serial != list->serial && changes->serial + 1 != list->serial)) return std::nullopt;
  return Left{std::move(list->uses), std::move(changes->changed)};
}

}  // namespace kvd::store
