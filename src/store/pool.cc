#include "store/pool.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error_text.h"
#include "block/checksum.h"
#include "store/pool_memory.h"
#include "store/tenant_space.h"

namespace kvd::store {
namespace {

constexpr std::size_t kChunkRecords = 256;
constexpr std::uint64_t kBytesPerBucket = 64 << 10;  // of the table: records are mostly larger, chains stay short
constexpr std::uint64_t kPrefaultBytes = std::uint64_t{32} << 20;
// What looking for room may cost in one turn of the loop: 4,096 steps from record to record are about 0.2 ms.
constexpr std::size_t kVictimsMax = 32;   // oldest records whose neighbourhood is looked at
constexpr std::size_t kLooksMax = 4096;   // steps around them, and again steps by place
constexpr std::uint64_t kEvictedMax = 4;  // times what is wanted

using TenantClean = List<PoolRecord, &PoolRecord::tenant_link>;

// Whether the tenant has room for `bytes` more, which its quota is not too small for, without the oldest `most` of its
// records that may be evicted.
bool suffice(const TenantSpace& tenant, std::uint64_t bytes, std::size_t most) noexcept {
  std::uint64_t wanted = tenant.pool_bytes.value() - (tenant.quota.pool_bytes - bytes);
  for (const PoolRecord* record = tenant.clean.front(); record != nullptr && most > 0; --most) {
    if (record->bytes() >= wanted) return true;
    wanted -= record->bytes();
    record = TenantClean::after(*record);
  }
  return false;
}

std::uint32_t page_of(const PoolRecord& record) noexcept {
  return static_cast<std::uint32_t>(record.pool_offset / kPageBytes);
}

}  // namespace

RecordView view_of(PoolRecord& record, std::uint32_t first, std::uint32_t count) {
  KVD_CHECK(record.has(first, count));
  RecordView view;
  view.pin = Pin(&record);
  view.first_slab = record.slab(first);
  view.pool_offset = record.pool_offset + record.shape->slab_offset(first - record.layer_base);
  view.slab_stride = record.shape->slab_stride;
  view.checksums = record.checksums.subspan(first, count);
  view.content = record.own_checksum;
  return view;
}

Result<std::unique_ptr<Pool>> Pool::create(std::uint64_t bytes, StoreStats& stats, Namespaces& namespaces,
                                           bool shared) {
  KVD_CHECK(bytes > 0 && is_aligned(bytes, kPageBytes));
  io::PrivateFd fd(io::UniqueFd(::memfd_create("kvdepot-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (!fd.ok()) return fail(Code::kNoSpace, "creating the pool's memory file", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return fail(Code::kNoSpace, "sizing the pool's memory file", errno);
  }
  void* base = map_pool(fd.get(), bytes);
  if (base == MAP_FAILED) return fail(Code::kNoSpace, "mapping the pool", errno);
  const bool sealed = seal_pool(fd.get(), shared);
  ::madvise(base, bytes, MADV_HUGEPAGE);  // wishes: no harm where the kernel grants none
  ::madvise(base, bytes, MADV_DONTFORK);
  ::madvise(base, bytes, MADV_DONTDUMP);
  std::unique_ptr<Pool> pool(new Pool(std::move(fd), static_cast<std::byte*>(base), bytes, stats, namespaces));
  pool->shared_ = sealed;
  return pool;
}

Pool::Pool(io::PrivateFd fd, std::byte* base, std::uint64_t bytes, StoreStats& stats, Namespaces& namespaces)
    : fd_(std::move(fd)),
      base_(base),
      bytes_(bytes),
      stats_(stats),
      namespaces_(namespaces),
      allocator_(static_cast<std::uint32_t>(bytes / kPageBytes)),
      table_(std::bit_ceil(std::clamp<std::uint64_t>(bytes / kBytesPerBucket, 1024, std::uint64_t{1} << 24))),
      loads_(reserved(kLoadsReservedMax)) {
  reserve();
}

// Takes now what puts and gets would take one by one.
void Pool::reserve() {
  const std::size_t records = reserved(kReservedMax);
  while (free_records_.size() < records) add_records();
  // A node of a tree that is given up stays with nodes_.
  for (std::uint32_t i = 0; i < records; ++i) by_place_.emplace_hint(by_place_.end(), i, nullptr);
  by_place_.clear();
  allocator_.reserve(records);
}

void Pool::add_records() {
  chunks_.push_back(std::make_unique<PoolRecord[]>(kChunkRecords));
  free_records_.reserve(chunks_.capacity() * kChunkRecords);
  for (std::size_t i = kChunkRecords; i-- > 0;) free_records_.push_back(&chunks_.back()[i]);
}

Pool::~Pool() {
  toucher_ = {};
  ::munmap(base_, bytes_);
}

void Pool::prefault(Log& log, Populate first) {
  toucher_ = std::jthread([this, &log, first = std::move(first)](const std::stop_token& stop) {
    if (first) first(stop);
    const bool all = touch_pages(stop, log);
    prefaulted_.store(all ? Prefault::kDone : Prefault::kGivenUp, std::memory_order_release);
  });
}

// Populating for writing changes no byte, so it may run beside puts and reads. False when not all of them are there.
bool Pool::touch_pages(const std::stop_token& stop, Log& log) const {
  for (std::uint64_t at = 0; at < bytes_ && !stop.stop_requested(); at += kPrefaultBytes) {
    if (populate_pool(base_ + at, std::min(kPrefaultBytes, bytes_ - at))) continue;
    const int error = errno;
    if (error == EINTR) {
      at -= kPrefaultBytes;  // once more
      continue;
    }
    if (error != EINVAL)  // which is a kernel that cannot: puts touch the pages
      log.warn(
          fmt::format("pool: only {} of {} MiB could be had from the kernel ({}): there is less memory than the "
                      "pool needs, and the depot may be killed when it fills: use a smaller pool",
                      at >> 20, bytes_ >> 20, error_text(error)));
    return false;
  }
  return !stop.stop_requested();
}

std::uint64_t Pool::used_bytes() const noexcept {
  return std::uint64_t{allocator_.pages() - allocator_.free_pages()} * kPageBytes;
}

// ---- Eviction ----

bool Pool::make_room(std::uint32_t pages) {
  if (allocator_.largest_free() >= pages) return true;
  std::size_t looks = kLooksMax;
  std::optional<Stretch> stretch;
  const PoolRecord* oldest = clean_.front();
  // A stretch with records of the newer half is taken where no other is found: they are likely to be asked for.
  const std::uint64_t newer = oldest == nullptr ? 0 : oldest->used_at + (clean_.back()->used_at - oldest->used_at) / 2;
  for (std::size_t i = 0; i < kVictimsMax && looks > 0 && oldest != nullptr; ++i) {
    const std::optional<Stretch> found = best_around(*oldest, pages, looks);
    if (found && (!stretch || found->newest < stretch->newest)) stretch = found;
    if (stretch && stretch->newest <= std::max(newer, oldest->used_at)) break;
    oldest = clean_.after(*oldest);
  }
  if (!stretch && !clean_.empty()) stretch = next_by_place(pages);
  if (!stretch) return false;
  evict(*stretch);
  KVD_CHECK(allocator_.largest_free() >= pages);
  return true;
}

// Pages that are free when the records from `begin` up to and with `last` are gone, holes on both sides included.
std::uint32_t Pool::room_of(Places::iterator begin, Places::iterator last) const noexcept {
  const std::uint32_t from = begin == by_place_.begin() ? 0 : std::prev(begin)->first + std::prev(begin)->second->pages;
  const auto after = std::next(last);
  return (after == by_place_.end() ? allocator_.pages() : after->first) - from;
}

Pool::Stretch Pool::stretch_of(Places::iterator begin, Places::iterator last, std::size_t& looks) noexcept {
  Stretch stretch{.begin = begin, .end = std::next(last), .pages = 0, .newest = 0};
  for (auto at = begin; at != stretch.end; ++at) {
    stretch.pages += at->second->pages;
    stretch.newest = std::max(stretch.newest, at->second->used_at);
    looks -= std::min<std::size_t>(looks, 1);
  }
  return stretch;
}

bool Pool::cheap(const Stretch& stretch, std::uint32_t pages) noexcept {
  return stretch.pages <= kEvictedMax * std::uint64_t{pages} || std::next(stretch.begin) == stretch.end;
}

// Of the stretches around `victim` that make room, as short as they may be, the one that was left alone for longest.
std::optional<Pool::Stretch> Pool::best_around(const PoolRecord& victim, std::uint32_t pages, std::size_t& looks) {
  const auto middle = by_place_.find(page_of(victim));
  auto begin = middle;
  for (; looks > 0 && room_of(begin, middle) < pages && begin != by_place_.begin(); --looks, --begin)
    if (!may_go(*std::prev(begin)->second)) break;
  std::optional<Stretch> best;
  for (auto last = begin; looks > 0;) {  // the window [begin, last] moves over the victim
    --looks;
    while (begin != last && begin != middle && room_of(std::next(begin), last) >= pages) ++begin;
    if (last->first >= middle->first && room_of(begin, last) >= pages) {
      const Stretch found = stretch_of(begin, last, looks);
      if (cheap(found, pages) && (!best || found.newest < best->newest)) best = found;
      if (begin == middle) break;
      ++begin;
    } else if (++last == by_place_.end() || !may_go(*last->second)) {
      break;
    }
  }
  return best;
}

// The first stretch that makes room, from where the last search ended; the whole pool is searched in several calls.
std::optional<Pool::Stretch> Pool::next_by_place(std::uint32_t pages) {
  const std::size_t enough = std::max<std::size_t>(kLooksMax, 2 * std::size_t{pages});
  const std::size_t looks_max = std::min(enough, 2 * by_place_.size());
  auto last = by_place_.lower_bound(sweep_at_);
  std::optional<Places::iterator> begin;
  std::size_t ignored = 0;
  for (std::size_t looks = 0; looks < looks_max; ++looks, ++last) {
    if (last == by_place_.end()) {
      last = by_place_.begin();
      begin.reset();
    }
    if (!may_go(*last->second)) {
      begin.reset();
      continue;
    }
    if (!begin) {
      begin = last;
      sweep_at_ = last->first;
    }
    while (*begin != last && room_of(std::next(*begin), last) >= pages) ++*begin;
    if (room_of(*begin, last) < pages) continue;
    if (const Stretch found = stretch_of(*begin, last, ignored); cheap(found, pages)) return found;
  }
  if (!begin) sweep_at_ = last == by_place_.end() ? 0 : last->first;
  return std::nullopt;
}

void Pool::evict(const Stretch& stretch) {
  for (auto at = stretch.begin; at != stretch.end;) {
    PoolRecord& record = *(at++)->second;
    stats_.pool_evictions.add();
    detach(record);
  }
}

// Evicts up to `most` of the tenant's own records until there is room for `bytes` more of it; false when that was not
// enough.
bool Pool::evict_beyond(TenantSpace& tenant, std::uint64_t bytes, std::size_t most) {
  for (std::size_t n = 0; n < most && !tenant.pool_takes(bytes); ++n) {
    PoolRecord* oldest = tenant.clean.front();
    if (oldest == nullptr) break;
    stats_.pool_evictions.add();
    tenant.pool_evictions.add();
    detach(*oldest);
  }
  return tenant.pool_takes(bytes);
}

// Nothing is evicted where what may go now would not suffice. Within its quota a tenant makes room for any record so,
// as each that goes has a page at least; beyond one that has become smaller it waits for trim() where that is much.
bool Pool::make_tenant_room(TenantSpace& tenant, std::uint64_t bytes) {
  if (tenant.pool_takes(bytes)) return true;
  const std::size_t most = std::max<std::size_t>(kGivenUpMax, bytes / kPageBytes);
  if (bytes <= tenant.pool_room() && suffice(tenant, bytes, most) && evict_beyond(tenant, bytes, most)) return true;
  tenant.pool_refused.add();
  return false;
}

bool Pool::trim(TenantSpace& tenant) { return !evict_beyond(tenant, 0, kGivenUpMax) && !tenant.clean.empty(); }

std::uint64_t Pool::recount(const TenantSpace& tenant) const noexcept {
  std::uint64_t bytes = 0;
  for (const auto& [page, record] : by_place_) bytes += record->tenant == &tenant ? record->bytes() : 0;
  return bytes;
}

PoolRecord* Pool::allocate(const RecordKey& key, const block::RecordShape& shape) {
  return allocate(key, shape, 0, shape.layers);
}

PoolRecord* Pool::allocate(const RecordKey& key, const block::RecordShape& shape, std::uint32_t layer_first,
                           std::uint32_t layer_count) {
  const auto pages = static_cast<std::uint32_t>(shape.slab_offset(layer_count) / kPageBytes);
  TenantSpace* const tenant = key.ns == Namespaces::kNone ? nullptr : &namespaces_.tenant(key.ns);
  const std::uint64_t bytes = std::uint64_t{pages} * kPageBytes;
  if (tenant != nullptr && !make_tenant_room(*tenant, bytes)) return nullptr;
  if (!make_room(pages)) return nullptr;
  const std::uint32_t first = *allocator_.allocate(pages);
  if (free_records_.empty()) add_records();
  PoolRecord& record = *free_records_.back();
  free_records_.pop_back();
  record = PoolRecord();
  record.pool = this;
  record.tenant = tenant;
  record.key = key;
  record.shape = &shape;
  record.seed = block::record_seed(key.id, shape);
  record.pages = pages;
  record.layer_base = layer_first;
  record.pool_offset = std::uint64_t{first} * kPageBytes;
  record.image = base_ + record.pool_offset;
  record.state = PoolRecord::State::kWriting;
  by_place_.emplace(first, &record);
  if (tenant != nullptr) {
    namespaces_.hold(key.ns);
    tenant->pool_bytes.add(bytes);
  }
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

std::optional<std::uint32_t> Pool::visit(std::uint32_t from, std::size_t max,
                                         const std::function<bool(PoolRecord&)>& visit) {
  auto at = by_place_.lower_bound(from);
  while (at != by_place_.end() && max-- > 0 && visit(*at->second)) ++at;
  return at == by_place_.end() ? std::nullopt : std::optional(at->first);
}

void Pool::touch(PoolRecord& record) {
  if (!clean_.holds(record)) return;
  clean_.erase(record);
  clean_.push_back(record);
  record.used_at = ++uses_;
  if (!TenantClean::linked(record)) return;
  record.tenant->clean.erase(record);
  record.tenant->clean.push_back(record);
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

void Pool::begin_load(PoolRecord& record) {
  KVD_CHECK(record.load == nullptr);
  record.load = &loads_.take();
}

void Pool::end_load(PoolRecord& record) noexcept {
  if (record.load != nullptr) loads_.give_back(*std::exchange(record.load, nullptr));
}

void Pool::settle(PoolRecord& record) noexcept {
  const bool evictable = record.state == PoolRecord::State::kClean && !record.referenced();
  if (evictable && !clean_.holds(record)) {
    clean_.push_back(record);
    clean_bytes_ += record.bytes();
    record.used_at = ++uses_;
    if (TenantSpace* const tenant = record.tenant) {
      tenant->clean.push_back(record);
      tenant->clean_bytes += record.bytes();
      if (!tenant->pool_takes(0) && on_beyond_) on_beyond_(*tenant);
    }
  }
  if (!evictable && clean_.holds(record)) {
    clean_.erase(record);
    clean_bytes_ -= record.bytes();
    if (TenantClean::linked(record)) {
      record.tenant->clean.erase(record);
      record.tenant->clean_bytes -= record.bytes();
    }
  }
  if (record.state == PoolRecord::State::kDetached && !record.referenced()) free_record(record);
}

void Pool::free_record(PoolRecord& record) noexcept {
  KVD_CHECK(record.link.list == nullptr && record.acks_first == nullptr);
  allocator_.free(page_of(record), record.pages);
  by_place_.erase(page_of(record));
  record.state = PoolRecord::State::kFree;
  end_load(record);
  free_records_.push_back(&record);
  stats_.pool_bytes_used.set(used_bytes());
  if (record.tenant == nullptr) return;
  record.tenant->pool_bytes.sub(record.bytes());
  namespaces_.release(record.key.ns);  // the last: it may be the tenant's end
}

}  // namespace kvd::store
