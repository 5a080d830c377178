// Loader: reads records from flash into their pool images, layer by layer, and completes the gets that wait for them.
//
// A record that is being loaded is in the pool's table already, with a Load that says which layers are there. Gets name
// what they want; layers are read once however many gets want them (single flight), in operations of at most 512 KiB of
// adjacent layers, or of one layer that is larger, in layer order and round robin over the records, so that the first
// layers of a whole prefix arrive first and partial reads read only what they need. Records that are asked for one
// after the other and lie one after the other on flash share an operation. When one completes, the next are handed to
// the device before what has come is verified, so that it has work meanwhile. Every slab is verified against the
// record's table, which is verified against the index. What fails is read once more, by itself, then the record is
// dropped and its gets end with kCorrupt. Gets come before promotions, which may wait for as long as there are any;
// where the segment is given up meanwhile they end. A get that has passed its deadline ends; its buffer stays until the
// I/O has completed. Belongs to the store's loop.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <memory_resource>
#include <vector>

#include "io/loop.h"
#include "store/aligned_buffer.h"
#include "store/device_log.h"
#include "store/flash.h"
#include "store/pool.h"

namespace kvd::store {

class Loader {
 public:
  static constexpr std::uint32_t kReadBytes = 1 << 19;       // of one record: NVMe saturates at 128 KiB to 1 MiB
  static constexpr std::uint32_t kMergedBytes = 1 << 20;     // of several that share an operation
  static constexpr std::uint32_t kGapBytes = 32 << 10;       // read and thrown away: 10 us of a 3 GB/s drive, less than
                                                             // another operation takes
  static constexpr std::size_t kPartsMax = 64;               // records that share one
  static constexpr std::size_t kOpsMax = 32;                 // in flight; a drive needs 16 of 1 MiB
  static constexpr std::size_t kPromotionsQueuedMax = 8192;  // two requests of kKeysPerRequestMax keys
  static constexpr std::uint64_t kPromotionBytesMax = std::uint64_t{256} << 20;
  static constexpr std::size_t kWaitersReserved = 1024;  // gets at once for which memory is taken at start, at most

  // Takes a record whose bytes on flash are no good out of pool and index for good.
  using Drop = std::function<void(PoolRecord&)>;
  // Finds the record of a queued promotion or begins one; null when it is gone or there is no room.
  using Start = std::function<PoolRecord*(const RecordKey&)>;

  Loader(Flash& flash, Pool& pool, const DeviceLogs& logs, bool verify);

  void on_drop(Drop drop) { drop_ = std::move(drop); }
  void on_promotion(Start start) { start_promotion_ = std::move(start); }

  // Makes `record`, fresh from the pool, one that is loaded from `place`: published, nothing of it there yet.
  void begin(PoolRecord& record, const FlashPlace& place);
  // Reads the layers of `get` into `image`, which has room for no more (a passing image of its record), and gives it
  // to `get` alone.
  void pass(Get& get, PoolRecord& image, const FlashPlace& place);
  // Waits for the layers of `get`, which `record` has not all. Requires that its place still holds it.
  void wait(Get& get, PoolRecord& record);
  // Ends a waiting get with kCancelled, now.
  void cancel(Get& get);
  // Reads all of a record in the background, as soon as earlier promotions leave room. Forgotten when too many wait.
  void promote(const RecordKey& key);
  // The record is removed or lost: its gets end with `why`, nothing more of it is read.
  void abandon(PoolRecord& record, const Status& why);
  // All gets end with `why`, from inside: the store closes.
  void abandon_all(const Status& why);
  // This segment is given up: what is read of it for nobody is not read any more.
  void given_up(std::uint32_t segment);
  // Those that wait for this device: it went off.
  void abandon_all_of(const FlashDevice& device);

  // Gets are waiting.
  [[nodiscard]] bool busy() const noexcept { return waiters_ > 0; }

 private:
  // Adjacent layers of one record, with or without its table, as they lie on flash.
  struct Extent {
    bool table = false;
    std::uint32_t first = 0, count = 0;  // layers
    std::uint64_t begin = 0, bytes = 0;  // on the volume
    [[nodiscard]] LayerSet layers() const;
  };
  struct Part {
    PoolRecord* record = nullptr;
    Extent extent;
  };
  struct Op {
    io::DiskOp op;
    std::vector<Part> parts;
    std::vector<iovec> buffers;
    AlignedBuffer gap{kGapBytes};  // takes what lies between records
  };
  // A part that has been read and not looked at.
  struct Landed {
    Part part;
    Status status;
  };

  // What one device reads. Each has its own, so that none waits for another.
  struct Lane {
    List<PoolRecord, &PoolRecord::load_link> demanded;  // with layers to submit, and gets that wait
    List<PoolRecord, &PoolRecord::load_link> promoted;  // with layers to submit, nobody waits
    std::array<Op, kOpsMax> ops;
    std::vector<Op*> free_ops;
  };

  void expect(PoolRecord& record, const FlashPlace& place);
  // Queueing and submitting.
  void want(PoolRecord& record, std::uint32_t first, std::uint32_t count);
  void enqueue(PoolRecord& record);
  void pump();
  void pump(Lane& lane);
  [[nodiscard]] Lane& lane_of(const PoolRecord& record) const {
    return *lanes_[flash_.segments.at(record.place.segment).device];
  }
  // What is to be read next of a record with something wanted.
  [[nodiscard]] Extent next_extent(const PoolRecord& record) const;
  // Whether some of this was read before, and failed.
  [[nodiscard]] static bool failed(const PoolRecord& record, const Extent& extent);
  // Whether `extent` may share `op`, which ends at `end`.
  [[nodiscard]] bool joins(const Op& op, std::uint64_t end, const PoolRecord& record, const Extent& extent) const;
  void add_part(Op& op, PoolRecord& record, const Extent& extent);
  void submit(Lane& lane, Op& op);
  // Completion and verification; false when the record was given up.
  void completed(Lane& lane, Op& op, const Status& status);
  void take_all_landed();
  void take(const Part& part, const Status& status);
  bool take_table(PoolRecord& record);
  bool take_landed(PoolRecord& record);
  // What of these has failed before is not read again: the record is dropped.
  bool read_again(PoolRecord& record, bool table, const LayerSet& layers, Code code);
  void progress(PoolRecord& record);
  void settle(PoolRecord& record);
  void activate(PoolRecord& record);
  void deactivate(PoolRecord& record);
  // Gets.
  void abandon_those(const Status& why, const FlashDevice* device);
  void add_waiter();
  Waiter& new_waiter();
  void finish(Waiter& waiter, const Status& how);
  void deadline_passed(Waiter& waiter);
  void deliver();
  void tell(Waiter& waiter);
  // Promotions.
  void start_promotions();
  void end_promotion(PoolRecord& record);

  Flash& flash_;
  Pool& pool_;
  const DeviceLogs& logs_;
  const bool verify_slabs_;
  Drop drop_;
  Start start_promotion_;

  std::vector<std::unique_ptr<Lane>> lanes_;  // by device
  std::vector<Landed> landed_, taking_;
  io::Timer verify_;  // for what has landed; behind the submission of what follows it

  std::vector<std::unique_ptr<Waiter>> all_waiters_;
  std::vector<Waiter*> free_waiters_;
  List<Waiter, &Waiter::link> finished_;  // to be told
  std::size_t waiters_ = 0;               // not told yet
  io::Timer deliver_;                     // for gets that end outside of a completion
  io::Timer pump_;                        // submits for what was asked in this turn, together

  std::pmr::unsynchronized_pool_resource nodes_;  // keeps what promotions_ gives up
  std::pmr::deque<RecordKey> promotions_{&nodes_};
  std::uint64_t promoting_bytes_ = 0;
};

}  // namespace kvd::store
