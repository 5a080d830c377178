// Recovery: fills index, segments, namespaces and tombstones from what lies on flash, before the store writes.
//
// Headers of all segments first, then, newest segment first, each one's footer; segments without a valid footer are
// scanned frame by frame with every payload verified, and get a footer for what was found. It only ever adds footers,
// so it can be interrupted and repeated at any point. What cannot be read or does not verify is read once more, because
// a lost segment may hold tombstones; then damage loses the record or segment it hit and is counted. A segment of which
// not all frames can be read gets no footer, which would hide the others for good: the next opening scans it again.
// Footers are read ahead, and the index's memory is fetched ahead of insertions. Blocks: runs the loop. Takes less than
// 13 MiB besides the index and some 150 bytes for each tombstone on flash (of which there is a bound, see
// Tombstones::kSpentMax; a store of before it may have more), and while it scans as much as the largest record, given
// back when it is done.
//
// Records may be got meanwhile, those of which nothing can be learnt any more that is to come. A tombstone of a record
// and a newer copy lie in the record's segment or in one that was opened later. The header of a segment tells below
// which generation all others were opened before it (format.h: kUnopenedAt), so what the segment holds counts as soon
// as those from there on are known: its state is kRecovered then. What any tombstone may mean is hidden until the end
// (Flash::hide), where tombstones are applied. Of a segment whose header does not tell nothing is served before the
// end.
//
// Of two schemas of one group of a namespace the one in the segment with the higher generation counts (Namespaces). A
// store never writes a second one while a segment holds the first; but what lies in a segment whose header cannot be
// read is not known, and may be at a later opening. Records of the other schema are dropped, and their segment is given
// up as soon as the store writes. Such a segment is kDoubtful, not free: see Evictor.
//
// Which of two copies is the newer one cannot be told where a footer that was read cannot be read again. On one device
// the one in the segment that was begun later is served. On two it need not be newer: none is served then. What may
// have to be ended later, and is in no index, is a stray, so that removals and replacements name it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "store/aligned_buffer.h"
#include "store/blocking_disk.h"
#include "store/flash.h"
#include "store/put_seqs.h"
#include "store/segment_scan.h"

namespace kvd::store {

struct RecoveryReport {
  std::uint64_t records = 0;     // in the index now
  std::uint64_t dropped = 0;     // damaged, of another version, or no room in the index; a segment's unread rest is one
  std::uint32_t segments = 0;    // that hold something
  std::uint32_t scanned = 0;     // of these, without a footer
  std::uint64_t tombstones = 0;  // kept until the end
};

class Recovery {
 public:
  // Called between two segments, in long ones, and while tombstones are applied: whoever is served meanwhile has its
  // turn of the loop. False: stop.
  using Meanwhile = std::function<bool()>;

  // `flash` is borrowed. Without `meanwhile` nobody asks before the end.
  explicit Recovery(Flash& flash, Meanwhile meanwhile = {});

  // kIo only when the device answers nothing at all; kCancelled when it was stopped: it has written footers only.
  Result<RecoveryReport> run();

 private:
  struct Use {
    std::uint32_t segment;  // as the store numbers it
    std::uint64_t generation;
    bool refused;                // an unknown feature: records are ignored, tombstones count
    std::uint64_t unopened = 0;  // generations of what may contradict its records are not lower; 0: unknown
  };

  // A record on its way into the index.
  struct Entering {
    const Descriptor* descriptor = nullptr;
    RecordKey key{};
  };

  // The uses of all segments of a device: as the last opening's table says, and by the headers that it does not tell
  // of.
  Status find_uses(FlashDevice& device, std::vector<Use>& uses);
  using Numbers = std::vector<std::uint32_t>;  // of segments, as the store numbers them
  bool believe_table(FlashDevice& device, std::vector<Use>& uses, Numbers& unreadable);
  Numbers read_headers(FlashDevice& device, std::span<const std::uint32_t> segments, std::vector<Use>& uses);
  void doubt(FlashDevice& device, const Numbers& unreadable);
  bool take_header(FlashDevice& device, std::uint32_t segment, Bytes page, std::vector<Use>& uses);
  void number_on(const std::vector<Use>& uses);
  // The footer, or what a scan finds, into memory. `footer`: as it was read ahead.
  void take(const Use& use, const Result<Footer*>& listed);
  // All uses down to this generation, of which there may be more, are known.
  void known_above(std::uint64_t generation);
  [[nodiscard]] bool go_on() { return !meanwhile_ || meanwhile_(); }
  // False when it was stopped.
  bool finish();
  // Sorts segments by when they go: as they were used, as far as the newest header tells, else by age.
  void sort_for_eviction(std::vector<std::pair<Use, bool>>& sealed) const;
  [[nodiscard]] BlockingDisk disk_of(FlashDevice& device) {
    return {flash_.loop, device.volume.disk(), &device.health, &flash_.stats.io_errors};
  }
  [[nodiscard]] ReadSegment reader_of(const Use& use);
  [[nodiscard]] SegmentUse whole(const Use& use) const;
  Result<Footer> read_footer(const Use& use);
  // What the frames of a segment without a footer tell.
  struct Scan {
    SegmentContent content;                     // all they say
    std::vector<Descriptor> good;               // of these, what verifies
    bool cut_short = false;                     // they could not be read to their end
    std::uint32_t unreadable = 0, damaged = 0;  // records that are left out
  };
  Footer scan(const Use& use, Scan& found);
  void leave_for_later(const Use& use, std::uint32_t page);
  void tell_left_out(const Use& use, const Scan& found, bool for_good) const;
  void verify_frame(const Use& use, const FrameHead& head, std::size_t first_descriptor, std::uint32_t first_page,
                    Scan& found);
  Status verify_record(const Use& use, const Descriptor& d, const SegmentContent& content);
  // False when it was not written.
  bool write_footer(const Use& use, Footer& footer);
  bool absorb(const Use& use, const Footer& footer);
  bool enter(const Use& use, std::vector<Entering>& entering);
  bool insert(const Use& use, const Descriptor& d, const RecordKey& key);
  void note_stray(std::uint64_t hash, const ReplacedPlace& place);
  void set_aside(std::uint64_t hash, const ReplacedPlace& place);
  // Tombstones of one record are together in a part.
  using Part = std::vector<Tombstone>;
  [[nodiscard]] Part& part_of(const RecordKey& key) { return tombstones_[key.hash % tombstones_.size()]; }
  bool each_part(const std::function<void(Part&)>& work);
  bool apply_tombstones();
  void apply(Part& part);
  void note_needed(const Part& part, std::vector<bool>& needed) const;
  [[nodiscard]] std::vector<std::uint32_t> segments_of_copies(const std::vector<bool>& needed) const;
  void restore(Part& part, const std::vector<std::uint32_t>& last);

  Flash& flash_;
  Meanwhile meanwhile_;
  bool stopped_ = false;
  RecoveryReport report_;
  std::vector<std::pair<Use, bool>> taken_;  // and whether all of its records were entered
  std::vector<Use> unserved_;                // of these, what waits to be kRecovered
  AlignedBuffer image_;                      // of a scanned record
  std::vector<Part> tombstones_;             // so that each turn of the loop has a few
  PutSeqs seqs_;
  std::unordered_map<std::uint64_t, std::vector<ReplacedPlace>> untold_;  // copies of which nobody can tell the newest
  // From the newest header of a device: segments as the store numbers them.
  struct Recent {
    std::uint64_t generation = 0;
    std::vector<std::uint32_t> segments;
  };
  std::vector<Recent> recent_;  // by device
};

}  // namespace kvd::store
