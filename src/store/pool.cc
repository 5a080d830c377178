#include "store/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "block/checksum.h"
#include "store/pool_memory.h"

namespace kvd::store {
namespace {

constexpr std::size_t kChunkRecords = 256;
constexpr std::uint64_t kBytesPerBucket = 64 << 10;  // of the table: records are mostly larger, chains stay short
constexpr std::uint64_t kPrefaultBytes = std::uint64_t{32} << 20;

}  // namespace

RecordView view_of(PoolRecord& record, std::uint32_t first, std::uint32_t count) {
  KVD_CHECK(record.has(first, count));
  RecordView view;
  view.pin = Pin(&record);
  view.first_slab = record.slab(first);
  view.pool_offset = record.pool_offset + record.shape->slab_offset(first);
  view.slab_stride = record.shape->slab_stride;
  view.checksums = record.checksums.subspan(first, count);
  return view;
}

Result<std::unique_ptr<Pool>> Pool::create(std::uint64_t bytes, bool prefault, StoreStats& stats,
                                           Namespaces& namespaces) {
  KVD_CHECK(bytes > 0 && is_aligned(bytes, kPageBytes));
  const int fd = ::memfd_create("kvdepot-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return fail(Code::kNoSpace, "creating the pool's memory file", errno);
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    ::close(fd);
    return fail(Code::kNoSpace, "sizing the pool's memory file", error);
  }
  // A peer that maps the file can then rely on its size.
  ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  void* base = map_pool(fd, bytes);
  if (base == MAP_FAILED) {
    const int error = errno;
    ::close(fd);
    return fail(Code::kNoSpace, "mapping the pool", error);
  }
  ::madvise(base, bytes, MADV_HUGEPAGE);  // wishes: no harm where the kernel grants none
  ::madvise(base, bytes, MADV_DONTFORK);
  ::madvise(base, bytes, MADV_DONTDUMP);
  auto pool = std::unique_ptr<Pool>(new Pool(fd, static_cast<std::byte*>(base), bytes, stats, namespaces));
  if (prefault) pool->toucher_ = std::jthread([p = pool.get()](const std::stop_token& stop) { p->prefault(stop); });
  return pool;
}

Pool::Pool(int fd, std::byte* base, std::uint64_t bytes, StoreStats& stats, Namespaces& namespaces)
    : fd_(fd),
      base_(base),
      bytes_(bytes),
      stats_(stats),
      namespaces_(namespaces),
      allocator_(static_cast<std::uint32_t>(bytes / kPageBytes)),
      table_(std::bit_ceil(std::clamp<std::uint64_t>(bytes / kBytesPerBucket, 1024, std::uint64_t{1} << 24))) {}

Pool::~Pool() {
  toucher_ = {};
  ::munmap(base_, bytes_);
  ::close(fd_);
}

// Populating for writing changes no byte, so it may run beside puts and reads.
void Pool::prefault(const std::stop_token& stop) const {
  for (std::uint64_t at = 0; at < bytes_ && !stop.stop_requested(); at += kPrefaultBytes)
    if (!populate_pool(base_ + at, std::min(kPrefaultBytes, bytes_ - at))) return;
}

std::uint64_t Pool::used_bytes() const noexcept {
  return std::uint64_t{allocator_.pages() - allocator_.free_pages()} * kPageBytes;
}

bool Pool::make_room(std::uint32_t pages) {
  while (allocator_.largest_free() < pages) {
    PoolRecord* victim = clean_.front();
    if (victim == nullptr) return false;
    stats_.pool_evictions.add();
    detach(*victim);
  }
  return true;
}

PoolRecord* Pool::allocate(const RecordKey& key, const block::RecordShape& shape) {
  const auto pages = static_cast<std::uint32_t>(shape.record_bytes() / kPageBytes);
  if (!make_room(pages)) return nullptr;
  const std::uint32_t first = *allocator_.allocate(pages);
  if (free_records_.empty()) {
    chunks_.push_back(std::make_unique<PoolRecord[]>(kChunkRecords));
    for (std::size_t i = kChunkRecords; i-- > 0;) free_records_.push_back(&chunks_.back()[i]);
  }
  PoolRecord& record = *free_records_.back();
  free_records_.pop_back();
  record = PoolRecord();
  record.pool = this;
  record.key = key;
  record.shape = &shape;
  record.seed = block::record_seed(key.id, shape);
  record.pages = pages;
  record.pool_offset = std::uint64_t{first} * kPageBytes;
  record.image = base_ + record.pool_offset;
  record.state = PoolRecord::State::kWriting;
  if (key.ns != Namespaces::kNone) namespaces_.hold(key.ns);
  stats_.pool_bytes_used.set(used_bytes());
  return &record;
}

PoolRecord* Pool::find(const RecordKey& key) const noexcept {
  PoolRecord* record = table_[key.hash & (table_.size() - 1)];
  while (record != nullptr && (record->key.hash != key.hash || record->key.ns != key.ns || record->key.id != key.id))
    record = record->hash_next;
  return record;
}

void Pool::publish(PoolRecord& record, PoolRecord::State state) {
  KVD_CHECK(record.state == PoolRecord::State::kWriting && find(record.key) == nullptr);
  KVD_CHECK(state == PoolRecord::State::kDirty || state == PoolRecord::State::kClean);
  PoolRecord*& head = bucket(record.key);
  record.hash_next = head;
  head = &record;
  record.state = state;
  stats_.pool_records.add(1);
  settle(record);
}

void Pool::unlink_from_table(PoolRecord& record) noexcept {
  PoolRecord** at = &bucket(record.key);
  while (*at != &record) at = &(*at)->hash_next;
  *at = record.hash_next;
  record.hash_next = nullptr;
  stats_.pool_records.sub(1);
}

void Pool::detach(PoolRecord& record) {
  KVD_CHECK(record.state != PoolRecord::State::kFree && record.state != PoolRecord::State::kDetached);
  if (record.published_now()) unlink_from_table(record);
  record.state = PoolRecord::State::kDetached;
  settle(record);
}

void Pool::clean(PoolRecord& record) {
  KVD_CHECK(record.state == PoolRecord::State::kDirty);
  record.state = PoolRecord::State::kClean;
  settle(record);
}

void Pool::dirty(PoolRecord& record) {
  KVD_CHECK(record.state == PoolRecord::State::kClean && record.load == nullptr);
  record.state = PoolRecord::State::kDirty;
  settle(record);
}

void Pool::touch(PoolRecord& record) {
  if (!clean_.holds(record)) return;
  clean_.erase(record);
  clean_.push_back(record);
}

void Pool::pin(PoolRecord& record) noexcept {
  if (record.pins++ == 0) stats_.pool_bytes_pinned.add(record.bytes());
  settle(record);
}

void Pool::unpin(PoolRecord& record) noexcept {
  KVD_CHECK(record.pins > 0);
  if (--record.pins == 0) stats_.pool_bytes_pinned.sub(record.bytes());
  settle(record);
}

void Pool::hold(PoolRecord& record) noexcept {
  ++record.holds;
  settle(record);
}

void Pool::release(PoolRecord& record) noexcept {
  KVD_CHECK(record.holds > 0);
  --record.holds;
  settle(record);
}

void Pool::settle(PoolRecord& record) noexcept {
  const bool evictable = record.state == PoolRecord::State::kClean && !record.referenced();
  if (evictable && !clean_.holds(record)) clean_.push_back(record);
  if (!evictable && clean_.holds(record)) clean_.erase(record);
  if (record.state == PoolRecord::State::kDetached && !record.referenced()) free_record(record);
}

void Pool::free_record(PoolRecord& record) noexcept {
  KVD_CHECK(record.link.list == nullptr && record.acks.empty());
  allocator_.free(static_cast<std::uint32_t>(record.pool_offset / kPageBytes), record.pages);
  record.state = PoolRecord::State::kFree;
  record.load.reset();
  free_records_.push_back(&record);
  stats_.pool_bytes_used.set(used_bytes());
  if (record.key.ns != Namespaces::kNone) namespaces_.release(record.key.ns);
}

}  // namespace kvd::store
