// Pool: the DRAM tier. One memfd mapping of fixed size, cut into record images by PageAllocator; the table of records
// that are in it; and the order in which clean ones leave it (least recently used first).
//
// One owner, one thread (a thread of its own touches the pages in the background after create()). The memory is
// pool_bytes for images plus about 350 bytes per record that is in the pool at once; nothing grows beyond that.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "store/list.h"
#include "store/page_allocator.h"
#include "store/pool_record.h"
#include "store/store.h"

namespace kvd::store {

// The layers [first, first + count) of a record, which must be there, pinned.
RecordView view_of(PoolRecord& record, std::uint32_t first, std::uint32_t count);

class Pool {
 public:
  // Maps `bytes` (a multiple of 4 KiB). The kernel gives pages as they are touched: with `prefault` in the background
  // from now on, so that neither puts nor the first requests pay for page faults, else by the puts. A pool larger than
  // the memory that is left is not refused here (kvdepot serve warns of it). kNoSpace: no descriptor or address space.
  static Result<std::unique_ptr<Pool>> create(std::uint64_t bytes, bool prefault, StoreStats& stats,
                                              Namespaces& namespaces);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t used_bytes() const noexcept;

  // A record with an image of its own in state kWriting, not in the table; clean records are evicted to make room.
  // Null when there is none. A record that is given up before publish() goes back with detach(). Until it is freed it
  // holds its namespace, unless that is Namespaces::kNone.
  PoolRecord* allocate(const RecordKey& key, const block::RecordShape& shape);

  // The published record of this key, or null.
  [[nodiscard]] PoolRecord* find(const RecordKey& key) const noexcept;
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

  // Evicts clean records until the largest free extent holds `pages`; false when that cannot be had.
  bool make_room(std::uint32_t pages);

 private:
  Pool(int fd, std::byte* base, std::uint64_t bytes, StoreStats& stats, Namespaces& namespaces);
  void prefault(const std::stop_token& stop) const;
  void settle(PoolRecord& record) noexcept;  // after a change of state or references: the right list, or freed
  void free_record(PoolRecord& record) noexcept;
  void unlink_from_table(PoolRecord& record) noexcept;
  PoolRecord*& bucket(const RecordKey& key) noexcept { return table_[key.hash & (table_.size() - 1)]; }

  int fd_;
  std::byte* base_;
  std::uint64_t bytes_;
  StoreStats& stats_;
  Namespaces& namespaces_;
  PageAllocator allocator_;
  std::vector<PoolRecord*> table_;  // chained through hash_next
  std::vector<std::unique_ptr<PoolRecord[]>> chunks_;
  std::vector<PoolRecord*> free_records_;
  List<PoolRecord, &PoolRecord::link> clean_;  // unreferenced clean records, front = next to be evicted
  std::jthread toucher_;                       // last: stops before the mapping goes
};

}  // namespace kvd::store
