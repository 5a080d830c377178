// Scrubber: reads sealed segments of a device in the background, so many bytes a second at the most, and has records
// dropped that are not what was put, before anybody asks for them and while a new put can still replace them.
//
// A pass goes over all segments, from one that depends on the opening, so that a store that is restarted often gets
// everywhere, too; passes begin a day apart or more. One read at a time: records that lie together, up to 1 MiB, or one
// larger record. What fails is read once more, by itself. Reading here is no use of a segment; one that is to be given
// up waits for a single read at most. A segment without a footer is left out: its records are verified when they are
// read, as all are. Memory: 1 MiB, or the largest record, and the footer of one segment (at most 6 MiB).
// Belongs to the store's loop.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "io/loop.h"
#include "store/aligned_buffer.h"
#include "store/evictor.h"
#include "store/flash.h"

namespace kvd::store {

class Scrubber {
 public:
  static constexpr std::size_t kReadBytes = 1 << 20;  // NVMe saturates at 128 KiB to 1 MiB
  static constexpr Duration kPassMin = std::chrono::hours(24);

  // Takes a record, of which the index says that it lies at this place, out of the index for good.
  using Drop = std::function<void(const RecordKey&, const FlashPlace&)>;

  Scrubber(Flash& flash, FlashDevice& device, Evictor& evictor, std::uint64_t bytes_per_s);

  // Begins the first pass, unless bytes_per_s is 0. For after recovery.
  void start(Drop drop);
  // The device was off, and is back.
  void resume();

 private:
  void step();
  // The footer of the next sealed segment, or the end of the pass.
  void begin_segment();
  void read_footer(std::size_t bytes);
  void footer_read(const Status& status);
  void take(Footer footer);
  // The next records of the segment, or its end.
  void read_records();
  void records_read(std::size_t first, std::size_t end, const Status& status);
  void read_again();
  void end_segment();

  // Whether the index has it where the footer does.
  [[nodiscard]] bool live(const Descriptor& d) const;
  [[nodiscard]] bool sound(const Descriptor& d, std::uint64_t read_from) const;
  void drop(const Descriptor& d);
  // Reads these bytes of the segment, whose reader it is meanwhile; nothing else is under way.
  void read(std::uint64_t offset, std::size_t bytes, std::move_only_function<void(Status)> on_done);

  Flash& flash_;
  FlashDevice& device_;
  Evictor& evictor_;
  const std::uint64_t bytes_per_s_;
  Drop drop_;

  std::uint32_t first_ = 0;  // of a pass, as the device numbers it
  std::uint32_t done_ = 0;   // segments of the pass
  Time pass_began_{};
  bool in_segment_ = false;
  std::uint32_t segment_ = 0;
  std::uint64_t generation_ = 0;
  Footer footer_;
  std::vector<block::NamespaceHash> hashes_;  // of the footer's namespaces
  std::size_t next_ = 0;                      // descriptor
  std::vector<std::size_t> again_;            // descriptors that failed once
  std::uint32_t dropped_ = 0;                 // of the segment

  AlignedBuffer buffer_;
  iovec io_{};
  io::DiskOp op_;
  io::Timer timer_;
};

}  // namespace kvd::store
