// Loader: reads records from flash into their pool images, layer by layer, and completes the gets that wait for them.
//
// A record that is being loaded is in the pool's table already, with a Load that says which layers are there. Gets name
// what they want; layers are read once however many gets want them (single flight), in operations of at most 512 KiB of
// adjacent layers, or of one layer that is larger, in layer order and round robin over the records, so that the first
// layers of a whole prefix arrive first and partial reads read only what they need. Every slab is verified against the
// record's table, which is verified against the index. What fails is read once more, then the record is dropped and its
// gets end with kCorrupt. Gets come before promotions. A get that has passed its deadline ends; its buffer stays until
// the I/O has completed. Belongs to the store's loop.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "io/loop.h"
#include "store/evictor.h"
#include "store/flash.h"
#include "store/pool.h"

namespace kvd::store {

class Loader {
 public:
  static constexpr std::uint32_t kReadBytes = 1 << 19;       // per operation: NVMe saturates at 128 KiB to 1 MiB
  static constexpr std::size_t kOpsMax = 32;                 // in flight; a drive needs 16 of 1 MiB
  static constexpr std::size_t kPromotionsQueuedMax = 8192;  // two requests of kKeysPerRequestMax keys
  static constexpr std::uint64_t kPromotionBytesMax = std::uint64_t{256} << 20;

  // Takes a record whose bytes on flash are no good out of pool and index for good.
  using Drop = std::function<void(PoolRecord&)>;
  // Finds the record of a queued promotion or begins one; null when it is gone or there is no room.
  using Start = std::function<PoolRecord*(const RecordKey&)>;

  Loader(Flash& flash, Pool& pool, Evictor& evictor, bool verify);

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
  // All gets end with `why`: the tier went off, or (`now`: from inside) the store closes.
  void abandon_all(const Status& why, bool now = false);

  // Gets are waiting.
  [[nodiscard]] bool busy() const noexcept { return waiters_ > 0; }

 private:
  struct Op {
    io::DiskOp op;
    iovec buffer{};
    PoolRecord* record = nullptr;
    std::uint32_t first = 0, count = 0;  // layers
    bool table = false;
  };

  void expect(PoolRecord& record, const FlashPlace& place);
  // Queueing and submitting.
  void want(PoolRecord& record, std::uint32_t first, std::uint32_t count);
  void enqueue(PoolRecord& record);
  void pump();
  bool submit_next(PoolRecord& record);
  // Completion and verification; false when the record was given up.
  void completed(Op& op, const Status& status);
  bool take_table(PoolRecord& record);
  bool take_landed(PoolRecord& record);
  bool read_again(PoolRecord& record, bool table, const LayerSet& layers, Code code);
  void progress(PoolRecord& record);
  void settle(PoolRecord& record);
  void activate(PoolRecord& record);
  void deactivate(PoolRecord& record);
  // Gets.
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
  Evictor& evictor_;
  const bool verify_;
  Drop drop_;
  Start start_promotion_;

  List<PoolRecord, &PoolRecord::load_link> demanded_;  // with layers to submit, and gets that wait
  List<PoolRecord, &PoolRecord::load_link> promoted_;  // with layers to submit, nobody waits
  std::array<Op, kOpsMax> ops_;
  std::vector<Op*> free_ops_;

  std::vector<std::unique_ptr<Waiter>> all_waiters_;
  std::vector<Waiter*> free_waiters_;
  List<Waiter, &Waiter::link> finished_;  // to be told
  std::size_t waiters_ = 0;               // not told yet
  io::Timer deliver_;                     // for gets that end outside of a completion
  io::Timer pump_;                        // submits for what was asked in this turn, together

  std::deque<RecordKey> promotions_;
  std::uint64_t promoting_bytes_ = 0;
};

}  // namespace kvd::store
