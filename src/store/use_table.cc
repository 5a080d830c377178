#include "store/use_table.h"

#include <utility>

#include "base/check.h"
#include "store/blocking_disk.h"

namespace kvd::store {

bool UseTable::possible() const noexcept {
  return !device_.unlisted && use_table_bytes(device_.volume.segments()) <= kUseTableBytesMax;
}

void UseTable::write(std::function<void()> on_done) {
  KVD_CHECK(possible() && !device_.writing());
  device_.end_writing();
  on_done_ = std::move(on_done);
  std::vector<UseEntry> uses;
  for (std::uint32_t s = 0; s < device_.volume.segments(); ++s) {  // fewer than there were, where it was made smaller
    const Segment& segment = flash_.segments.at(device_.numbered(s));
    uses.push_back({segment.generation, segment.unopened});
  }
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

std::optional<std::vector<UseEntry>> UseTable::read(Flash& flash, FlashDevice& device) {
  const std::size_t bytes = use_table_bytes(device.segments.count());
  if (bytes > kUseTableBytesMax) return std::nullopt;
  const AlignedBuffer area(bytes);
  BlockingDisk disk(flash.loop, device.volume.disk(), &device.health, &flash.stats.io_errors);
  if (!disk.read(kUseTableAt, area.span())) return std::nullopt;
  auto uses =
      parse_use_table(area.span(), device.volume.seeds(), device.volume.previous_epoch(), device.segments.count());
  return uses ? std::optional(std::move(*uses)) : std::nullopt;
}

}  // namespace kvd::store
