// UseTable: which use every segment is in, written at an orderly end, so that the next opening need not read the
// headers of all segments before it knows which are the newest (docs/formats/flash-log.md). What is there behind a kill
// is ChangeMap's.
//
// It is the last that an opening writes: from write() on the store writes nothing else (FlashDevice::end_writing), so
// no header can contradict it before the next opening, which marks itself in the superblocks first and believes only
// the table of the opening before. So it is believed once, and needs no writing to be taken back. One for a device; its
// loop.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "store/aligned_buffer.h"
#include "store/flash.h"

namespace kvd::store {

class UseTable {
 public:
  UseTable(Flash& flash, FlashDevice& device)
      : flash_(flash), device_(device), refused_(flash.loop, [this] {
          std::exchange(op_.on_done, {})(fail(Code::kIo, "the disk takes no operations"));
        }) {}

  // Whether the format has room for the table of this device, and no segment has what it cannot tell.
  [[nodiscard]] bool possible() const noexcept;
  // Writes and flushes it. Requires that every header, frame and footer is durable and nothing is being written;
  // nothing is from here on. `on_done` comes from the loop, also where it cannot be written: then there is none.
  void write(std::function<void()> on_done);

  // What the opening before this one has left, an entry for each segment, and whose headers may say something else
  // (where that opening has ended in order: none). Nothing where there is no table. Blocks: runs the loop.
  struct Left {
    std::vector<UseEntry> uses;
    SegmentBits changed;
  };
  [[nodiscard]] static std::optional<Left> read(Flash& flash, FlashDevice& device);

 private:
  void submit(io::DiskOp::Kind kind, std::move_only_function<void(Status)> on_done);

  Flash& flash_;
  FlashDevice& device_;
  std::function<void()> on_done_;
  AlignedBuffer area_;
  iovec buffer_{};
  io::DiskOp op_;
  io::Timer refused_;
};

// In which use each segment of a device is, as a table says it.
void list_uses(const Flash& flash, const FlashDevice& device, std::vector<UseEntry>& uses);

}  // namespace kvd::store
