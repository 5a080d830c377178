// FooterReader: the footers of many segments, read ahead of whoever takes them, in the order in which they are taken.
// Recovery of a large store is one footer after the other; read one at a time, a drive would answer one request at a
// time.
//
// Up to kAhead reads of a segment's last kTailBytes are in flight; footers that are longer are read again whole, as
// many at once as kLongBytes allows, so memory stays below 6 MiB and two footers. Blocks: runs the loop, for opening a
// store only.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "store/aligned_buffer.h"
#include "store/flash_device.h"
#include "store/segment_scan.h"

namespace kvd::store {

class FooterReader {
 public:
  static constexpr std::size_t kAhead = 64;
  static constexpr std::size_t kTailBytes = 16 << 10;  // a footer of up to 330 records
  static constexpr std::size_t kLongBytes = 4 << 20;

  // A use of a segment, as its device numbers it.
  struct Wanted {
    FlashDevice* device = nullptr;
    SegmentUse use;
  };

  // `loop` and the devices are borrowed; there is one segment size.
  FooterReader(io::Loop& loop, std::vector<Wanted> uses);
  ~FooterReader();  // waits for what is in flight
  FooterReader(const FooterReader&) = delete;
  FooterReader& operator=(const FooterReader&) = delete;

  // The footer of the next use, until the next call: all have the same memory. Requires that there is one. kCorrupt: it
  // has none, or it is damaged; kIo.
  Result<Footer*> next();

 private:
  enum class Step : std::uint8_t { kTail, kWaits, kWhole, kDone };
  struct Slot {
    Step step = Step::kDone;
    io::DiskOp op;
    iovec buffer{};
    AlignedBuffer tail;
    AlignedBuffer whole;  // of a footer longer than that
    FooterTrailer trailer;
    Status status;
  };

  [[nodiscard]] Slot& slot_of(std::size_t use) { return slots_[use % slots_.size()]; }
  void read(std::size_t use, MutableBytes to);
  void landed(std::size_t use, const Status& status);
  void start_more();

  io::Loop& loop_;
  const std::vector<Wanted> uses_;
  std::vector<Slot> slots_;
  std::size_t taken_ = 0, started_ = 0;  // uses
  std::size_t long_bytes_ = 0;           // of buffers for whole footers
  AlignedBuffer spare_;                  // a buffer of before, so that the heap does not grow by those of each footer
  Footer footer_;
  std::size_t pending_ = 0;
};

}  // namespace kvd::store
