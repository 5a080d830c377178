// Pool: the DRAM tier. One memfd mapping of fixed size, cut into record images by PageAllocator; the table of records
// that are in it; and the order in which clean ones leave it: least recently used first, as far as place allows. Room
// for a record is one stretch of addresses, so the neighbours of an old record go with it, and no others.
//
// One owner, one thread (a thread of its own touches the pages in the background after create()). The memory is
// pool_bytes for images plus about 450 bytes per record that is in the pool at once; nothing grows beyond that. What
// records of 64 KiB and more take is taken at start (up to kReservedMax of them); with more records than there ever
// were in the pool it grows, and it is kept.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "io/private_fd.h"
#include "store/list.h"
#include "store/page_allocator.h"
#include "store/pool_record.h"
#include "store/recycler.h"
#include "store/store.h"

namespace kvd::store {

// The layers [first, first + count) of a record, which must be there, pinned.
RecordView view_of(PoolRecord& record, std::uint32_t first, std::uint32_t count);

class Pool {
 public:
  static constexpr std::uint64_t kBytesReserved = 64 << 10;  // of pool for each record: most are larger
  // Records whose state is allocated at start: at most 45 MB, when the pool is 8 GiB or more.
  static constexpr std::size_t kReservedMax = 128 * 1024;
  // The same for records of which layers are missing.
  static constexpr std::size_t kLoadsReservedMax = 4096;

  // Maps `bytes` (a multiple of 4 KiB). The kernel gives pages as they are touched, by the puts unless prefault() was
  // faster. A pool larger than the memory that is left is not refused here (kvdepot serve warns of it, and prefault()
  // does). With `shared` its file can be handed to others, who can map it for reading only: see shared_fd(). kNoSpace:
  // no descriptor or address space.
  static Result<std::unique_ptr<Pool>> create(std::uint64_t bytes, StoreStats& stats, Namespaces& namespaces,
                                              bool shared = false);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  // The same, when whoever gets it cannot write to the pool; else -1.
  [[nodiscard]] int shared_fd() const noexcept { return shared_ ? fd_.get() : -1; }
  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  // Of something of which each record in the pool may need one: for how many memory is taken at start, at most `max`.
  [[nodiscard]] std::size_t reserved(std::size_t max) const noexcept {
    return std::min<std::size_t>(bytes_ / kBytesReserved, max);
  }
  [[nodiscard]] std::uint64_t used_bytes() const noexcept;
  // Free, or taken by records that may be evicted.
  [[nodiscard]] std::uint64_t room_bytes() const noexcept { return bytes_ - used_bytes() + clean_bytes_; }
  // Records that a tenant gives up for its quota in one turn of the loop: about a millisecond. A record that is larger
  // may take the place of as many as it has pages: 16,384 at most.
  static constexpr std::size_t kGivenUpMax = 4096;

  // Touches all pages in the background from now on, so that neither puts nor gets pay for page faults. Warns in `log`,
  // which outlives the pool, when the kernel has no page to give: a later put may then end the process. Once. `first`
  // is called there before.
  using Populate = std::function<void(const std::stop_token&)>;
  void prefault(Log& log, Populate first = {});
  // How far that is. kGivenUp: there is no page left, or the kernel cannot do it ahead of use.
  enum class Prefault : std::uint8_t { kNotYet, kDone, kGivenUp };
  [[nodiscard]] Prefault prefaulted() const noexcept { return prefaulted_.load(std::memory_order_acquire); }

  // A record with an image of its own in state kWriting, not in the table; clean records are evicted to make room: at
  // the tenant's quota its own, the least recently used first, and then as everybody's. Null when there is none, or not
  // within the quota. A record that is given up before publish() goes back with detach(). Until it is freed it
  // holds its namespace, unless that is Namespaces::kNone.
  PoolRecord* allocate(const RecordKey& key, const block::RecordShape& shape);
  // The same with room for the table page and the layers [layer_first, layer_first + layer_count) only: never to be
  // published.
  PoolRecord* allocate(const RecordKey& key, const block::RecordShape& shape, std::uint32_t layer_first,
                       std::uint32_t layer_count);

  // The published record of this key, or null.
  [[nodiscard]] PoolRecord* find(const RecordKey& key) const noexcept;
  // Asks the processor to fetch where find() begins.
  void prefetch(std::uint64_t hash) const noexcept { __builtin_prefetch(&table_[hash & (table_.size() - 1)]); }
  // And then what it reads of the first record there: many are looked up, and few places hold more than one.
  void prefetch_record(std::uint64_t hash) const noexcept {
    const PoolRecord* const first = table_[hash & (table_.size() - 1)];
    if (first == nullptr) return;
    __builtin_prefetch(first);
    __builtin_prefetch(&first->load);
  }
  // Puts a kWriting record into the table as `state` (kDirty or kClean). Requires that the key is not in it.
  void publish(PoolRecord& record, PoolRecord::State state);
  // Takes a record out of the table for good; it is freed when nothing refers to it any more, maybe now.
  void detach(PoolRecord& record);
  // A dirty record has its copy on flash, or will never have one: it may be evicted from here on.
  void clean(PoolRecord& record);
  // A clean record that has lost its copy on flash is to be written again.
  void dirty(PoolRecord& record);
  // The record was used: it becomes the last to be evicted.
  void touch(PoolRecord& record);

  void pin(PoolRecord& record) noexcept;
  void unpin(PoolRecord& record) noexcept;
  void hold(PoolRecord& record) noexcept;
  void release(PoolRecord& record) noexcept;  // of a hold; may free the record

  // Layers of the record are missing from now on: gives it its `load`. All of them are there: takes it away.
  void begin_load(PoolRecord& record);
  void end_load(PoolRecord& record) noexcept;

  // Evicts clean records that lie side by side until the largest free extent holds `pages`: no more than four times as
  // many pages, or one record. False when no such stretch was found; nothing has been evicted then.
  bool make_room(std::uint32_t pages);

  // Calls `visit` with records that have an image, by place from page `from` on: at most `max`, and until it says
  // false. It may change a record's state and must not free any. Returns where to go on: nothing at the end.
  std::optional<std::uint32_t> visit(std::uint32_t from, std::size_t max,
                                     const std::function<bool(PoolRecord&)>& visit);

  // `told` hears of a tenant that has more than its quota and now something that may be evicted: from inside of
  // whatever made it so, only to note it.
  void on_beyond(std::function<void(TenantSpace&)> told) { on_beyond_ = std::move(told); }
  // Evicts of what the tenant has beyond its quota, up to kGivenUpMax records; whether there is more to evict.
  bool trim(TenantSpace& tenant);
  // What its images take, counted anew. Looks at all images.
  [[nodiscard]] std::uint64_t recount(const TenantSpace& tenant) const noexcept;

 private:
  Pool(io::PrivateFd fd, std::byte* base, std::uint64_t bytes, StoreStats& stats, Namespaces& namespaces);
  [[nodiscard]] bool touch_pages(const std::stop_token& stop, Log& log) const;
  void reserve();
  void add_records();
  // Records by their first page. A stretch of them from `begin` up to but without `end` is evicted together.
  using Places = std::pmr::map<std::uint32_t, PoolRecord*>;
  struct Stretch {
    Places::iterator begin, end;
    std::uint32_t pages = 0;   // evicted
    std::uint64_t newest = 0;  // last use of the one that was used last
  };
  [[nodiscard]] bool may_go(const PoolRecord& record) const noexcept { return clean_.holds(record); }
  static Stretch stretch_of(Places::iterator begin, Places::iterator last, std::size_t& looks) noexcept;
  static bool cheap(const Stretch& stretch, std::uint32_t pages) noexcept;
  [[nodiscard]] std::uint32_t room_of(Places::iterator begin, Places::iterator last) const noexcept;
  std::optional<Stretch> best_around(const PoolRecord& victim, std::uint32_t pages, std::size_t& looks);
  std::optional<Stretch> next_by_place(std::uint32_t pages);
  void evict(const Stretch& stretch);
  bool make_tenant_room(TenantSpace& tenant, std::uint64_t bytes);
  bool evict_beyond(TenantSpace& tenant, std::uint64_t bytes, std::size_t most);
  void settle(PoolRecord& record) noexcept;  // after a change of state or references: the right list, or freed
  void free_record(PoolRecord& record) noexcept;
  void unlink_from_table(PoolRecord& record) noexcept;
  PoolRecord*& bucket(const RecordKey& key) noexcept { return table_[key.hash & (table_.size() - 1)]; }

  io::PrivateFd fd_;  // or a forked child would keep the pool's memory after the end of this process
  bool shared_ = false;
  std::byte* base_;
  std::uint64_t bytes_;
  StoreStats& stats_;
  Namespaces& namespaces_;
  PageAllocator allocator_;
  std::vector<PoolRecord*> table_;  // chained through hash_next
  std::vector<std::unique_ptr<PoolRecord[]>> chunks_;
  Recycler<PoolRecord::Load> loads_;
  std::vector<PoolRecord*> free_records_;
  List<PoolRecord, &PoolRecord::link> clean_;  // unreferenced clean records, front = next to be evicted
  std::uint64_t clean_bytes_ = 0;              // of the records in it
  std::pmr::unsynchronized_pool_resource nodes_;
  Places by_place_{&nodes_};    // all records that have pages
  std::uint32_t sweep_at_ = 0;  // where the next search by place goes on
  std::uint64_t uses_ = 0;      // stamps of recency
  std::function<void(TenantSpace&)> on_beyond_;
  std::atomic<Prefault> prefaulted_ = Prefault::kNotYet;
  std::jthread toucher_;  // last: stops before the mapping goes
};

}  // namespace kvd::store
