// Evictor: gives up segments of a device and makes them ready for new frames, a few ahead of need.
//
// Giving up a segment: (1) its state makes its records unfindable at once; (2) its index entries are erased, by its
// footer or, where that cannot be read, by a sweep over the index in slices; (3) tombstones it holds for other segments
// are written elsewhere and flushed, and so are those that its records imply on other devices; (4) loads that still
// read from it end; (5) its header with a new generation is written and flushed; (6) where the disk takes discards, the
// device is told that what the segment held is not needed, one piece at a time, until it fails at one. Only then may
// frames overwrite it. A segment that never held anything needs (5) only.
//
// A segment whose header could not be read at the start, or of which recovery has not taken all in, may hold an older
// copy of anything. It is left alone, so that the next start can find what it holds, until something is removed,
// replaced or given up: then all such segments get new headers, and (5) of what is given up waits for these, as it may
// be all that tells of older copies there. Those without a header are also made ready, before anything is given up,
// where no other segment is free. Belongs to the store's loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

#include "store/aligned_buffer.h"
#include "store/change_map.h"
#include "store/flash.h"
#include "store/sync_queue.h"

namespace kvd::store {

class Evictor {
 public:
  static constexpr std::uint32_t kReadyWanted = 2;        // one to open next, one that stays (Segments::open_next)
  static constexpr std::size_t kTasksMax = 4;             // segments being given up at once
  static constexpr std::size_t kBufferKeptMax = 4 << 20;  // of a footer that was read; its length may be damaged
  // For which memory is taken at start: segments being given up, others being prepared, and doubtful and half-known
  // ones, which what is given up waits for.
  static constexpr std::size_t kTasksReserved = kTasksMax + kReadyWanted + 2 * kTasksMax;
  static constexpr std::uint64_t kDiscardBytes = 64 << 20;  // of one discard; other operations may wait behind it
  static constexpr std::uint32_t kFailuresMax =
      5;  // in a row, then the device is taken for dead: nothing can be written
  static constexpr Duration kRetryDelay = std::chrono::seconds(1);  // after an error
  static constexpr Duration kOthersWait = Millis(100);  // for tombstones on another device, before one more is given up

  Evictor(Flash& flash, FlashDevice& device, SyncQueue& syncs, ChangeMap& changes);

  // Takes the memory that giving segments up needs: some 10 MB where they have 65,000 records.
  void reserve();

  // Called when a segment became ready or was sealed, or when tombstones wait to be written. Must not call back into
  // the evictor.
  void on_progress(std::function<void()> callback) { on_progress_ = std::move(callback); }

  // Called when a segment has begun to be given up: nothing of it is served from then on.
  void on_give_up(std::function<void(std::uint32_t segment)> callback) { on_give_up_ = std::move(callback); }

  // Starts what is needed to have enough segments ready. Call whenever one was opened.
  void maintain();
  // One was sealed: it may be given up.
  void segment_sealed() {
    too_many_tombstones_ = !ending_;
    changed();
  }
  // The store is about to end: nothing is given up for its tombstones any more.
  void ends() noexcept {
    ending_ = true;
    too_many_tombstones_ = false;
  }
  // Gives up one more segment than that: the index is at its cap.
  void make_index_room();
  // The index has no place for a record: erases a segment's entries at once (a sweep, milliseconds). False when nothing
  // is left to give up.
  bool make_index_room_now();
  // Whether neither will make room before something that is under way has ended: records wait for that.
  [[nodiscard]] bool index_room_waits() const;
  // A sealed segment to give up as soon as may be, a few at a time.
  void give_up(std::uint32_t segment);
  // Where Flash::doubts_end: overwrites the headers of segments in doubt, a few at a time. Call until none is left.
  void end_doubts();
  // The device is back: goes on with what could not be done, and gives up what is doomed.
  void resume();
  // Gives up this segment, which must be sealed; `retire`: for good, its number is to disappear from the volume.
  void evict(std::uint32_t segment, bool retire = false);
  // A load has ended that read from `segment`; tombstones became durable.
  void reader_gone(std::uint32_t segment);
  void tombstones_durable();

  [[nodiscard]] bool idle() const noexcept { return tasks_.empty(); }
  // A record is being removed. The segments whose old content is unfindable, but could come back after a crash, and
  // which held a record with this hash, as far as their footers tell: the removal must count them as living. Each of
  // them once per hash, because nothing newer is written there. One whose content is unknown is named for as many
  // hashes as it has pages, so at most 65,536; what is removed beyond waits for its end (Tombstones::await_end).
  [[nodiscard]] std::vector<std::uint32_t> removed_from(std::uint64_t record_hash);

 private:
  struct Task {
    enum class Step : std::uint8_t { kFooter, kSweep, kTombstones, kReaders, kMark, kHeader, kDiscard, kRetry };
    Step step = Step::kHeader;
    std::uint32_t segment = 0;
    bool evicts = false;  // it held something
    bool content_known = false;
    bool swept = false;                           // nothing of it is in the index: make_index_room_now()
    std::vector<std::uint64_t> content;           // content_known: hashes of the records that it held, sorted
    std::unordered_set<std::uint64_t> removed;    // hashes for which removed_from() has named it
    SegmentState becomes = SegmentState::kReady;  // or kRetired, kFree: with the new header
    bool doubtful = false;                        // its header could not be read
    bool half_known = false;                      // FlashDevice::half_known
    bool goes_first = false;                      // it waits for nothing that is half known: free_one()
    std::uint64_t new_generation = 0;
    std::uint64_t unopened = 0;  // in its header
    std::uint64_t sweep_at = 0;
    Time cleaned_at{};             // when its index entries were gone
    std::uint64_t discard_at = 0;  // in the segment: what is before it is discarded
    std::uint32_t failures = 0;    // in a row
    AlignedBuffer header;
    iovec io{};
    io::DiskOp op;
  };

  void changed();
  void prepare_free();
  void give_up_some();
  void give_up_spent();
  [[nodiscard]] bool stuck() const;
  void free_one();
  void end_half_known();
  [[nodiscard]] std::optional<std::uint32_t> half_known_sealed() const;
  bool give_up_one();
  [[nodiscard]] bool may_begin_for_index() const;
  Task& begin(std::uint32_t segment);
  void add_spare();
  Task& add_task(std::uint32_t segment, bool evicts, bool half_known = false);
  void submit(Task& task, io::DiskOp::Kind kind, std::uint64_t offset, MutableBytes buffer,
              std::move_only_function<void(Status)> on_done);
  void read_footer(Task& task, std::size_t bytes);
  void footer_read(Task& task, const Status& status);
  void read_next_footer();
  [[nodiscard]] std::size_t footer_tail() const noexcept;
  void erase_by(Task& task, const Footer& footer);
  // Takes what the index has of its segment in these buckets out of it: how many.
  std::uint64_t erase_some(const Task& task, std::uint64_t from, std::uint64_t buckets);
  void sweep();
  void index_clean(Task& task);
  [[nodiscard]] bool has_to_keep(const Task& task) const;
  [[nodiscard]] bool is_behind_half_known(const Task& task) const;
  [[nodiscard]] bool has_to_wait(const Task& task) const;
  void hold(Task& task);
  void go_on(Task& task);
  void prepare(Task& task);
  void write_header(Task& task);
  void header_durable(Task& task);
  void discard_next();
  void discarded(Task& task, const Status& status);
  void finish(Task& task);
  void retry(Task& task);
  void retry_all();

  Flash& flash_;
  FlashDevice& device_;
  SyncQueue& syncs_;
  ChangeMap& changes_;
  std::function<void()> on_progress_;
  std::function<void(std::uint32_t)> on_give_up_;
  std::vector<std::unique_ptr<Task>> tasks_;
  std::vector<std::unique_ptr<Task>> spare_;  // not in use; they keep their memory
  Task* footer_reader_ = nullptr;             // whose footer is being read
  AlignedBuffer footer_area_;                 // it; may be longer than what is read
  Footer footer_;                             // of the segment that is looked at; it keeps its memory
  std::vector<block::NamespaceHash> hashes_;  // of its namespaces; the same
  std::vector<ReplacedPlace> surplus_;        // uses of segments that are to be given up
  bool too_many_tombstones_ = true;           // that are spent may lie on flash: to be looked at
  bool told_spent_ = false;                   // the log has it
  bool ending_ = false;
  bool discards_;               // the disk takes them
  bool discarding_ = false;     // one is under way
  std::uint32_t failures_ = 0;  // rounds of tries with one, since a segment was prepared
  io::Timer sweep_;
  io::Timer retry_;
};

}  // namespace kvd::store
