// Recovery: fills index, segments, namespaces and tombstones from what lies on flash, before the store serves.
//
// Headers of all segments first, then, newest segment first, each one's footer; segments without a valid footer are
// scanned frame by frame with every payload verified, and get a footer for what was found. It only ever adds footers,
// so it can be interrupted and repeated at any point. What cannot be read or does not verify is read once more, because
// a lost segment may hold tombstones; then damage loses the record or segment it hit and is counted.
// Footers are read ahead, and the index's memory is fetched ahead of insertions. Blocks: runs the loop. Takes less than
// 12 MiB besides the index, given back when it is done.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "store/evictor.h"
#include "store/flash.h"
#include "store/pool.h"
#include "store/put_seqs.h"
#include "store/segment_scan.h"

namespace kvd::store {

struct RecoveryReport {
  std::uint64_t records = 0;   // in the index now
  std::uint64_t dropped = 0;   // damaged, of another version, or no room in the index
  std::uint32_t segments = 0;  // that hold something
  std::uint32_t scanned = 0;   // of these, without a footer
};

class Recovery {
 public:
  // All are borrowed; `pool` is empty and lends its memory to verify scanned records in.
  Recovery(Flash& flash, Pool& pool);

  // kIo only when the device answers nothing at all.
  Result<RecoveryReport> run();
  // Segments whose records had no room in the index: to be given up first.
  [[nodiscard]] const std::vector<std::uint32_t>& surplus() const noexcept { return surplus_; }

 private:
  struct Use {
    std::uint32_t segment;
    std::uint64_t generation;
    bool refused;  // an unknown feature: records are ignored, tombstones count
  };

  // A record on its way into the index.
  struct Entering {
    const Descriptor* descriptor = nullptr;
    RecordKey key{};
  };

  Status read_headers(std::vector<Use>& uses);
  // Sorts segments by when they go: as they were used, as far as the newest header tells, else by age.
  void sort_for_eviction(std::vector<std::pair<Use, bool>>& sealed) const;
  [[nodiscard]] ReadSegment reader_of(const Use& use);
  [[nodiscard]] SegmentUse whole(const Use& use) const;
  Result<Footer> read_footer(const Use& use);
  Footer scan(const Use& use);
  void verify_frame(const Use& use, const FrameHead& head, std::size_t first_descriptor, std::uint32_t first_page,
                    SegmentContent& content, std::vector<Descriptor>& good);
  bool record_verifies(const Use& use, const Descriptor& d, const SegmentContent& content);
  // False when it was not written.
  bool write_footer(const Use& use, Footer& footer);
  bool absorb(const Use& use, const Footer& footer);
  bool enter(const Use& use, std::vector<Entering>& entering);
  bool insert(const Use& use, const Descriptor& d, const RecordKey& key);
  [[nodiscard]] std::optional<std::uint32_t> segment_of_copies() const;
  void apply_tombstones();

  Flash& flash_;
  Pool& pool_;
  RecoveryReport report_;
  std::vector<Tombstone> tombstones_;
  PutSeqs seqs_;
  std::vector<std::uint32_t> surplus_;
  std::vector<std::uint32_t> recent_;  // from the newest header
  std::uint64_t recent_generation_ = 0;
};

}  // namespace kvd::store
