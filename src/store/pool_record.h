// PoolRecord: a record's image in the pool with its state. Owned by Pool; other parts of the store hold plain pointers,
// protected by a hold or a pin: a record with either keeps its pages, also after it has left the table.
//
//   kWriting --publish--> kDirty --its frame is written--> kClean     (a record read from flash starts as kClean)
//   any --remove, drop--> kDetached --last pin and hold gone--> freed
//
// A passing image has room for the table page and some layers only, for one get: it is kDetached from the start.
// Only a kClean record without pins and holds can be evicted; without a flash tier, kDirty does not exist.
#pragma once

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/time.h"
#include "io/loop.h"
#include "kvdepot/types.h"
#include "store/list.h"
#include "store/namespaces.h"
#include "store/store.h"

namespace kvd::store {

class Frame;
class Loader;
class Pool;
class PoolRecord;
struct TenantSpace;

// A get that waits for layers of a record. Owned by Loader, which recycles them.
struct Waiter {
  Waiter(io::Loop& loop, std::function<void(Waiter&)> on_deadline)
      : deadline(loop, [this, call = std::move(on_deadline)] { call(*this); }) {}
  Get* get = nullptr;
  PoolRecord* record = nullptr;  // held until the get is told
  Status how;                    // how it ends, once finished
  ListLink<Waiter> link;         // in its record's list, then in the loader's list of finished ones
  io::Timer deadline;
};

// Where a record lies on flash. The generation makes the place unique in time: a place whose segment has another
// generation now is gone.
struct FlashPlace {
  std::uint32_t segment = 0;
  std::uint32_t offset = 0;      // pages from the segment's start
  std::uint64_t generation = 0;  // 0 = not on flash
  std::uint32_t checksum = 0;    // low half of the descriptor's
  friend bool operator==(const FlashPlace& a, const FlashPlace& b) noexcept {
    return a.segment == b.segment && a.offset == b.offset && a.generation == b.generation;
  }
};

// A segment, in one of its uses, that holds an older record of a key that was put again.
struct ReplacedPlace {
  std::uint32_t segment = 0;
  std::uint64_t generation = 0;
  friend bool operator==(const ReplacedPlace&, const ReplacedPlace&) = default;
};

using LayerSet = std::bitset<kLayersMax>;

class PoolRecord {
 public:
  enum class State : std::uint8_t { kFree, kWriting, kDirty, kClean, kDetached };

  // What is here and what is on its way, while layers of the image are missing. Null in a complete record.
  struct Load {
    LayerSet valid;    // read and verified
    LayerSet wanted;   // to be read, not submitted yet
    LayerSet pending;  // submitted
    LayerSet landed;   // read, waiting for the table to be verified against
    LayerSet failed;   // could not be read or verified, once, and has not been read since
    bool table_valid = false, table_wanted = false, table_pending = false, table_failed = false;
    bool whole = false;                   // promoted: read to the end whether or not somebody waits
    bool active = false;                  // holds the record, and its segment as a reader
    bool passing = false;                 // belongs to one get, is in no table, and is freed with the get's pin
    List<Waiter, &Waiter::link> waiters;  // gets that wait for layers
    [[nodiscard]] bool busy() const noexcept {
      return wanted.any() || pending.any() || landed.any() || table_wanted || table_pending;
    }
    void reset() noexcept {
      KVD_CHECK(waiters.empty());
      for (LayerSet* set : {&valid, &wanted, &pending, &landed, &failed}) set->reset();
      table_valid = table_wanted = table_pending = table_failed = whole = active = passing = false;
    }
  };

  // Somebody who waits for the record to be on flash. Owned by Demoter, which recycles them.
  struct Ack {
    AckLevel level = AckLevel::kPooled;
    std::move_only_function<void(Status)> on_ack;
    Ack* next = nullptr;  // of the same record
    void reset() noexcept {
      on_ack = nullptr;
      next = nullptr;
    }
  };

  RecordKey key;
  PoolRecord* hash_next = nullptr;  // these three are all that a lookup reads
  Load* load = nullptr;             // the pool's
  const block::RecordShape* shape = nullptr;
  std::uint64_t seed = 0;  // block::record_seed
  std::byte* image = nullptr;
  std::uint64_t pool_offset = 0;
  std::uint32_t pages = 0;
  std::uint32_t layer_base = 0;  // the first layer that the image has room for; not 0 in a passing one only
  State state = State::kFree;
  bool missed = false;  // it was put, or was to be written, while the flash tier or the device that it went to was off
  bool urgent = false;  // somebody waits for it to be written
  bool replaces = false;        // its put takes the place of what is stored under its key
  bool ends_elsewhere = false;  // it is on flash, and tombstones on other devices end what it replaces
  std::uint8_t write_failures = 0;
  std::uint32_t pins = 0;     // outside references
  std::uint32_t leases = 0;   // of these, leases
  std::uint32_t holds = 0;    // the store's own: I/O on its pages, gets that wait
  std::uint64_t used_at = 0;  // grows with each use: its place in the order of eviction
  std::uint64_t put_seq = 0;
  const Frame* frame = nullptr;  // that its image is being written with
  Time published{};
  FlashPlace place;
  std::span<const std::uint64_t> checksums;  // of all layers; into the table page, or `own_checksum`
  std::uint64_t own_checksum = 0;
  Bytes foreign;              // the foreign key, in the table page; empty for a native key
  Ack* acks_first = nullptr;  // who waits for it to be on flash, in the order of asking
  Ack* acks_last = nullptr;
  // Of a record that replaces others and is not on flash yet: where those are. They must not come back instead of it.
  std::vector<ReplacedPlace> replaced;
  void note_replaced(const ReplacedPlace& old) {
    if (std::ranges::find(replaced, old) == replaced.end()) replaced.push_back(old);
  }

  Pool* pool = nullptr;
  TenantSpace* tenant = nullptr;     // null: of no namespace
  ListLink<PoolRecord> link;         // of the clean list or of a dirty queue
  ListLink<PoolRecord> load_link;    // of the loader's queues
  ListLink<PoolRecord> tenant_link;  // of its tenant's clean list, or of what waits to be written

  [[nodiscard]] std::uint64_t bytes() const noexcept { return std::uint64_t{pages} * kPageBytes; }
  [[nodiscard]] bool referenced() const noexcept { return pins > 0 || holds > 0; }
  [[nodiscard]] bool published_now() const noexcept { return state == State::kDirty || state == State::kClean; }
  [[nodiscard]] bool has(std::uint32_t first, std::uint32_t count) const noexcept;
  [[nodiscard]] std::byte* slab(std::uint32_t layer) const noexcept {
    return image + shape->slab_offset(layer - layer_base);
  }
  [[nodiscard]] MutableBytes payload(std::uint32_t layer) const noexcept { return {slab(layer), shape->slab_bytes}; }
  [[nodiscard]] MutableBytes table_page() const noexcept { return {image, shape->table_bytes}; }
};

inline bool PoolRecord::has(std::uint32_t first, std::uint32_t count) const noexcept {
  if (load == nullptr) return true;
  for (std::uint32_t layer = first; layer < first + count; ++layer)
    if (!load->valid[layer]) return false;
  return load->table_valid;
}

}  // namespace kvd::store
