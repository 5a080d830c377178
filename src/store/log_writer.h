// LogWriter: appends frames to a device's open segment, in order, and seals segments with their footers.
//
// Up to kFramesMax frames are in flight; a frame counts as written when it and all frames before it in its segment are,
// because that is how far a recovery without a footer reads. After a failed write the segment takes no more frames: the
// failed frame and those after it are reported as failed and are the caller's to append again, elsewhere.
// A footer is trusted without a look at what it lists, so it is written only when that is durable: one flush of the
// device per segment, behind its last frame. Where a flush has failed there is none, and the next start reads the
// frames. Belongs to the store's loop; callbacks come from the loop.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "store/evictor.h"
#include "store/flash.h"
#include "store/frame.h"
#include "store/sync_queue.h"

namespace kvd::store {

class LogWriter {
 public:
  // Storage design: 4-8 of 1-4 MiB fill a drive's write queue.
  static constexpr std::size_t kFramesMax = OpenSegment::kFramesMax;
  // Open or closing, which have memory of their own: a footer waits for a flush and is written beside frames.
  static constexpr std::size_t kSegmentsMax = 4;

  // Called with each frame that was submitted, in order per segment; the frame is free again afterwards. Must not call
  // back into the writer.
  using OnFrame = std::function<void(Frame&, const Status&)>;

  LogWriter(Flash& flash, FlashDevice& device, Evictor& evictor, SyncQueue& syncs);

  // Takes the memory that open and closing segments need: some 6 MB for each of segments of 65,000 records.
  void reserve();

  void on_frame(OnFrame callback) { on_frame_ = std::move(callback); }

  // An empty frame for the open segment; null when kFramesMax are in flight, no segment is ready (one is being made
  // so), kSegmentsMax are not sealed yet, the index is full until one is sealed, or the device is off. Rolls first
  // where the open segment has taken its part of tombstones that may be spent. While tombstones wait to be carried over
  // the last ready segment may be opened, too. Ends with submit() or give_back().
  Frame* begin_frame();
  // Whether the index is full, and nothing can be given up for it before a segment has got its footer, or what is being
  // given up has ended.
  [[nodiscard]] bool index_waits() const;
  void submit(Frame& frame);
  void give_back(Frame& frame);
  // Closes the open segment, if there is one: it gets its footer when its frames have completed and been flushed.
  void roll();
  // Whether the open segment has no frame yet, so that what does not fit now never will.
  [[nodiscard]] bool fresh() const noexcept { return current_ != nullptr && current_->next_page == 1; }

  [[nodiscard]] std::size_t in_flight() const noexcept { return in_flight_; }
  // Calls `visit` with every frame that is in flight.
  void visit_in_flight(const std::function<void(const Frame&)>& visit) const;
  // Nothing is on its way, footers included.
  [[nodiscard]] bool idle() const noexcept { return in_flight_ == 0 && closing_.empty(); }

 private:
  struct Closing {
    std::unique_ptr<OpenSegment> segment;
    AlignedBuffer footer;  // may be longer than it
    iovec buffer{};
    io::DiskOp op;
  };

  [[nodiscard]] bool takes_no_more_tombstones() const;
  [[nodiscard]] bool without_footer(const OpenSegment& segment) const;
  void frame_done(Frame& frame, const Status& status);
  void settle(OpenSegment& segment);  // reports frames in order
  void finish(Closing& closing);      // all its frames have completed
  void write_footer(Closing& closing);
  void sealed(const Closing& closing, const Status& status);

  Flash& flash_;
  FlashDevice& device_;
  Evictor& evictor_;
  SyncQueue& syncs_;
  OnFrame on_frame_;
  std::array<Frame, kFramesMax> frames_;
  std::vector<Frame*> free_;
  std::size_t in_flight_ = 0;
  std::unique_ptr<OpenSegment> current_;
  std::vector<std::unique_ptr<Closing>> closing_;
  // Not in use; they keep their memory.
  std::vector<std::unique_ptr<OpenSegment>> spare_segments_;
  std::vector<std::unique_ptr<Closing>> spare_closings_;
};

}  // namespace kvd::store
