// Frame and OpenSegment: what is being appended to the flash log.
//
// A frame collects records and tombstones until it is full, then lays itself out and is one write: its descriptor area
// and the images straight from the pool. An OpenSegment is a segment from its first frame to its footer: the tables
// that its frames have told, the descriptors of its completed frames, and how much room is left beside the footer it
// will need. Owned by LogWriter; a frame in flight must not be touched.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory_resource>
#include <span>
#include <unordered_map>
#include <vector>

#include "io/disk.h"
#include "store/aligned_buffer.h"
#include "store/flash_device.h"
#include "store/format.h"
#include "store/pool_record.h"
#include "store/tombstones.h"

namespace kvd::store {

class Frame;

struct OpenSegment {
  // `records`: how many descriptors it takes memory for.
  explicit OpenSegment(std::uint32_t pages_in, std::size_t records = 0);
  // Begins with this segment, which has taken no frame yet. Keeps its memory.
  void reset(std::uint32_t id_in, std::uint64_t generation_in);

  // Pages kept for frames of tombstones only, so that a full segment never stops a removal from being carried over.
  [[nodiscard]] std::uint32_t reserve_pages() const noexcept { return std::min(16u, pages / 16); }
  // Whether a frame of these pages fits, with the footer that the segment would then need.
  [[nodiscard]] bool fits(std::uint32_t frame_pages, std::size_t new_schemas, std::size_t new_namespaces,
                          std::size_t new_records, bool tombstones_only) const noexcept;

  static constexpr std::size_t kFramesMax = 4;  // in flight (LogWriter)

  std::uint32_t id = 0;
  std::uint64_t generation = 0;
  std::uint32_t pages;
  std::uint32_t next_page = 1;       // after the header and all frames so far
  std::uint32_t completed_page = 1;  // the same for frames that have completed
  std::uint32_t frame_seq = 0;       // of the next frame
  std::uint32_t frames_completed = 0;
  std::size_t records_appended = 0;  // descriptors of all frames so far
  std::uint64_t put_seq_max = 0;
  SegmentContent content;  // tables of all frames, descriptors of completed ones
  std::vector<NamespaceUsage> usage;
  std::pmr::unsynchronized_pool_resource nodes;                             // keeps what the maps give up
  std::pmr::unordered_map<std::uint64_t, std::uint16_t> schema_at{&nodes};  // by schema hash
  std::pmr::unordered_map<NamespaceHandle, std::uint16_t> namespace_at{&nodes};
  std::vector<Frame*> in_flight;  // in order
  bool broken = false;            // a write failed: nothing more is appended
  bool frames_failed = false;     // ... and was reported: later frames do not count either
  bool closed = false;            // gets its footer when nothing is in flight any more
};

class Frame {
 public:
  Frame();
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  // Starts to collect for `segment`, which lies on `device`, as all that its tombstones name.
  void reset(OpenSegment& segment, const Namespaces& namespaces, const FlashDevice& device);
  // Takes it in if frame and segment have room. Tombstones come before records; a record must stay as it is until the
  // frame has completed.
  bool add(PoolRecord& record);
  bool add(const Tombstone& tombstone);

  [[nodiscard]] bool empty() const noexcept { return descriptors_.empty(); }
  [[nodiscard]] std::uint64_t payload_bytes() const noexcept { return std::uint64_t{payload_pages_} * kPageBytes; }

  // Gives the frame its place at the segment's end and fills in the descriptor area and the operation.
  void lay_out();

  // Valid until the next reset().
  [[nodiscard]] std::span<PoolRecord* const> records() const noexcept { return records_; }
  [[nodiscard]] std::span<const Tombstone> tombstones() const noexcept { return tombstones_; }
  [[nodiscard]] std::span<const Descriptor> descriptors() const noexcept { return descriptors_; }
  [[nodiscard]] OpenSegment& segment() const noexcept { return *segment_; }
  // Namespaces that it is the first of its segment to use.
  [[nodiscard]] std::span<const NamespaceHandle> new_namespaces() const noexcept { return new_namespaces_; }
  // Where record i lies, once laid out.
  [[nodiscard]] FlashPlace place(std::size_t i) const noexcept;
  // Enters this frame's descriptors into its segment's content: the frame has completed.
  void enter_content() const;

  io::DiskOp op;
  bool done = false;
  Status status;

 private:
  // Adds the descriptor of a record (or, with image_pages 0, a tombstone) of `key`, and the table entries it is the
  // first to use. False and nothing changed when there is no room.
  bool add(Descriptor descriptor, const RecordKey& key, std::uint32_t image_pages);

  OpenSegment* segment_ = nullptr;
  const Namespaces* namespaces_ = nullptr;
  const FlashDevice* device_ = nullptr;
  AlignedBuffer area_;
  std::vector<iovec> buffers_;
  std::vector<PoolRecord*> records_;
  std::vector<Tombstone> tombstones_;
  std::vector<Descriptor> descriptors_;  // of the tombstones, then of the records
  std::vector<NamespaceHandle> new_namespaces_;
  std::size_t first_schema_ = 0, first_namespace_ = 0;  // of the entries that are new in this frame
  std::uint32_t payload_pages_ = 0;
  std::uint32_t end_page_ = 0;
};

}  // namespace kvd::store
