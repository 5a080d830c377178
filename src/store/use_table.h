// UseTable: which use every segment is in, written once at an orderly end, so that the next opening need not read the
// headers of all segments before it knows which are the newest (docs/formats/flash-log.md).
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

  // What the opening before this one has left, an entry for each segment; nothing where it has not ended in order.
  // Blocks: runs the loop.
  [[nodiscard]] static std::optional<std::vector<UseEntry>> read(Flash& flash, FlashDevice& device);

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

}  // namespace kvd::store
