#include "store/store_impl.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/sizes.h"
#include "block/checksum.h"

namespace kvd::store {

// ---- Pin and PutHandle ----

Pin::Pin(PoolRecord* record) noexcept : record_(record) { record->pool->pin(*record); }
Pin::Pin(Pin&& other) noexcept : record_(std::exchange(other.record_, nullptr)) {}
Pin& Pin::operator=(Pin&& other) noexcept {
  std::swap(record_, other.record_);
  return *this;
}
Pin::~Pin() {
  if (record_ != nullptr) record_->pool->unpin(*record_);
}

PutHandle::PutHandle(PutHandle&& other) noexcept
    : store_(other.store_), record_(std::exchange(other.record_, nullptr)) {}
PutHandle& PutHandle::operator=(PutHandle&& other) noexcept {
  std::swap(store_, other.store_);
  std::swap(record_, other.record_);
  return *this;
}
PutHandle::~PutHandle() {
  if (record_ != nullptr) store_->drop_put(*record_);
}
MutableBytes PutHandle::slab(std::uint16_t layer) const noexcept {
  KVD_CHECK(record_ != nullptr && layer < record_->shape->layers);
  return record_->payload(layer);
}
std::uint64_t PutHandle::seed() const noexcept {
  KVD_CHECK(record_ != nullptr);
  return record_->seed;
}
PoolRecord* Store::take_record(PutHandle& put) noexcept { return std::exchange(put.record_, nullptr); }

// ---- Lookup ----

void Store::lookup_all(NamespaceHandle ns, std::span<const block::RecordId> ids, std::span<Tier> tiers) const {
  for (std::size_t i = 0; i < ids.size(); ++i) tiers[i] = lookup(ns, ids[i]);
}

const block::NamespaceHash& StoreImpl::namespace_hash(NamespaceHandle ns) const {
  KVD_CHECK(namespaces_->opened(ns));
  return namespaces_->at(ns).hash;
}

const GroupInfo* StoreImpl::group_of(NamespaceHandle ns, std::uint16_t group) const noexcept {
  return namespaces_->opened(ns) ? namespaces_->at(ns).group(group) : nullptr;
}

const GroupSchema* StoreImpl::schema(NamespaceHandle ns, std::uint16_t group) const {
  const GroupInfo* info = group_of(ns, group);
  return info == nullptr ? nullptr : &info->schema;
}

std::optional<Flash::Found> StoreImpl::find_on_flash(const RecordKey& key) const noexcept {
  if (tier_ == nullptr) return std::nullopt;
  const auto found = tier_->flash.find(key.hash);
  return serves(namespaces_->tenant(key.ns), found) ? found : std::nullopt;
}

bool StoreImpl::usable(const PoolRecord& record) const noexcept {
  return record.load == nullptr || (tier_ != nullptr && tier_->flash.backs(record.place));
}

PoolRecord* StoreImpl::find_usable(const RecordKey& key) {
  PoolRecord* record = pool_->find(key);
  if (record == nullptr || usable(*record)) return record;
  tier_->loader.abandon(*record, fail(Code::kNotFound, "the record's segment was given up"));
  pool_->detach(*record);
  return nullptr;
}

Tier StoreImpl::lookup(NamespaceHandle ns, const block::RecordId& id) const {
  if (group_of(ns, id.group) == nullptr) return Tier::kNone;
  const RecordKey key = namespaces_->key_of(ns, id);
  const PoolRecord* record = pool_->find(key);
  if (record != nullptr) return tier_of(*record);
  return find_on_flash(key) ? Tier::kFlash : Tier::kNone;
}

Tier StoreImpl::tier_of(const PoolRecord& record) const noexcept {
  if (!usable(record)) return Tier::kNone;
  return record.load == nullptr ? Tier::kPool : Tier::kFlash;
}

// What one lookup reads of the tables is fetched while those before it are computed, and then what it reads of records.
void StoreImpl::lookup_all(NamespaceHandle ns, std::span<const block::RecordId> ids, std::span<Tier> tiers) const {
  KVD_CHECK(tiers.size() == ids.size());
  const bool one_group = std::ranges::all_of(ids, [&](const auto& id) { return id.group == ids[0].group; });
  if (!one_group || ids.empty() || group_of(ns, ids[0].group) == nullptr) return Store::lookup_all(ns, ids, tiers);
  const block::NamespaceHash& ns_hash = namespaces_->at(ns).hash;
  const TenantSpace& tenant = namespaces_->tenant(ns);
  std::array<RecordKey, kLookupsAhead> keys;
  std::array<FlashIndex::Place, kLookupsAhead> places;
  for (std::size_t i = 0; i < ids.size() + kLookupsAhead; ++i) {
    RecordKey& key = keys[i % kLookupsAhead];
    FlashIndex::Place& place = places[i % kLookupsAhead];
    if (i >= kLookupsAhead) {
      const PoolRecord* record = pool_->find(key);
      const bool on_flash = record == nullptr && tier_ != nullptr && serves(tenant, tier_->flash.find(key.hash, place));
      tiers[i - kLookupsAhead] = record != nullptr ? tier_of(*record) : on_flash ? Tier::kFlash : Tier::kNone;
    }
    if (i < ids.size()) {
      key = {ns, ids[i], record_hash(ns_hash, ids[i])};
      pool_->prefetch(key.hash);
      if (tier_ != nullptr) place = tier_->flash.index.prefetch(key.hash);
    }
    const std::size_t half_way = i - kLookupsAhead / 2;
    if (half_way < ids.size()) pool_->prefetch_record(keys[half_way % kLookupsAhead].hash);
  }
}

// A use counts in both tiers, or the segments of the hottest records would be given up first.
void StoreImpl::used(PoolRecord& record) {
  pool_->touch(record);
  if (tier_ != nullptr && tier_->flash.backs(record.place)) tier_->flash.segments.touch(record.place.segment);
}

// ---- Gets ----

void StoreImpl::finish_get(Get& get, Result<RecordView> result) {
  if (!result) stats_.misses.add();
  if (!result && result.error().code == Code::kBusy) stats_.busy.add();
  get.internal = nullptr;
  auto on_done = std::move(get.on_done);
  on_done(std::move(result));
}

void StoreImpl::start_get(Get& get) {
  const GroupInfo* group = group_of(get.ns, get.id.group);
  if (group == nullptr) return finish_get(get, fail(Code::kInvalid, "the namespace has no such group"));
  const std::uint16_t layers = group->schema.layers;
  if (get.layer_count == 0 && get.layer_first < layers)
    get.layer_count = static_cast<std::uint16_t>(layers - get.layer_first);
  if (get.layer_count == 0 || get.layer_first >= layers || get.layer_count > layers - get.layer_first)
    return finish_get(get, fail(Code::kInvalid, "the schema has no such layers"));
  if (tier_ != nullptr) tier_->demoter.activity();

  const RecordKey key = namespaces_->key_of(get.ns, get.id);
  PoolRecord* record = find_usable(key);
  if (record == nullptr) return get_from_flash(get, key, *group);
  const bool here = record->has(get.layer_first, get.layer_count);
  // An image that somebody is loading is waited for, one with holes that nobody fills is not worth its room.
  if (get.passing && !here && !record->load->active) return get_from_flash(get, key, *group);
  const bool known = record->load == nullptr || record->load->table_valid;
  if (known && !std::ranges::equal(record->foreign, get.foreign))
    return finish_get(get, fail(Code::kNotFound, "another foreign key has this hash"));
  used(*record);
  if (!here) return tier_->loader.wait(get, *record);
  stats_.pool_hits.add();
  stats_.bytes_got.add(std::uint64_t{get.layer_count} * record->shape->slab_bytes);
  RecordView view;
  if (get.passing) view = copy_of(*record, get.layer_first, get.layer_count);
  if (!view.pin) view = view_of(*record, get.layer_first, get.layer_count);
  finish_get(get, std::move(view));
}

RecordView StoreImpl::copy_of(PoolRecord& record, std::uint32_t first, std::uint32_t count) {
  const Pin pin(&record);  // or it might be evicted for its copy
  PoolRecord* copy = pool_->allocate(record.key, *record.shape, first, count);
  if (copy == nullptr) return {};
  const block::RecordShape& shape = *record.shape;
  std::memcpy(copy->slab(first), record.slab(first), std::size_t{count} * shape.slab_stride);
  copy->own_checksum = record.own_checksum;
  copy->checksums = {&copy->own_checksum, 1};
  if (shape.table_bytes > 0) {  // its checksums lie in the table page
    std::memcpy(copy->image, record.image, shape.table_bytes);
    const auto at = std::as_bytes(record.checksums).data() - record.image;
    copy->checksums = {reinterpret_cast<const std::uint64_t*>(copy->image + at), record.checksums.size()};
  }
  RecordView view = view_of(*copy, first, count);
  pool_->detach(*copy);
  return view;
}

void StoreImpl::get_from_flash(Get& get, const RecordKey& key, const GroupInfo& group) {
  const auto found = find_on_flash(key);
  const block::RecordShape& shape = get.foreign.empty() ? group.native : group.foreign;
  if (!found || found->pages != shape.record_bytes() / kPageBytes)
    return finish_get(get, fail(Code::kNotFound, "no such record"));
  PoolRecord* record = get.passing ? nullptr : begin_load(key, shape, *found);
  if (record != nullptr) return tier_->loader.wait(get, *record);
  PoolRecord* image = pool_->allocate(key, shape, get.layer_first, get.layer_count);
  if (image != nullptr) return tier_->loader.pass(get, *image, found->place);
  finish_get(get, fail(crowded(key, shape.slab_offset(get.layer_count))));
}

PoolRecord* StoreImpl::begin_load(const RecordKey& key, const block::RecordShape& shape, const Flash::Found& found) {
  PoolRecord* record = pool_->allocate(key, shape);
  if (record == nullptr) {
    static_cast<void>(crowded(key, shape.record_bytes()));
    return nullptr;
  }
  tier_->loader.begin(*record, found.place);
  return record;
}

void StoreImpl::cancel(Get& get) {
  if (tier_ != nullptr) tier_->loader.cancel(get);
}

void StoreImpl::promote(NamespaceHandle ns, const block::RecordId& id) {
  if (tier_ == nullptr || group_of(ns, id.group) == nullptr) return;
  tier_->demoter.activity();
  const RecordKey key = namespaces_->key_of(ns, id);
  PoolRecord* record = pool_->find(key);
  if (record != nullptr) used(*record);
  const bool missing = record == nullptr ? find_on_flash(key).has_value() : record->load != nullptr;
  if (missing) tier_->loader.promote(key);
}

PoolRecord* StoreImpl::start_promotion(const RecordKey& key) {
  // It has waited: its namespace may be closed, and the handle another one's.
  if (!namespaces_->opened(key.ns) || namespaces_->key_of(key.ns, key.id).hash != key.hash) return nullptr;
  if (PoolRecord* record = find_usable(key)) return record;
  const auto found = find_on_flash(key);
  const GroupInfo* group = group_of(key.ns, key.id.group);
  const block::RecordShape* shape = found && group != nullptr ? group->shape_of_pages(found->pages) : nullptr;
  return shape == nullptr ? nullptr : begin_load(key, *shape, *found);
}

LeasePin StoreImpl::pin_for_lease(NamespaceHandle ns, const block::RecordId& id, std::uint64_t bytes_max) {
  if (group_of(ns, id.group) == nullptr) return {};
  PoolRecord* record = pool_->find(namespaces_->key_of(ns, id));
  if (record == nullptr || record->load != nullptr) return {};
  const std::uint64_t all_max = pool_->bytes() / 100 * options_.pinned_percent_max;
  const std::uint64_t more = record->leases == 0 ? record->bytes() : 0;
  if (more > bytes_max || lease_bytes_ + more > all_max) return {};
  lease_bytes_ += more;
  ++record->leases;
  used(*record);
  return {.pin = Pin(record), .bytes = more};
}

std::uint64_t StoreImpl::unpin_lease(Pin pin) {
  if (!pin) return 0;
  PoolRecord& record = *pin.get();
  KVD_CHECK(record.leases > 0);
  if (--record.leases > 0) return 0;
  lease_bytes_ -= record.bytes();
  return record.bytes();
}

// ---- Puts ----

Result<const GroupInfo*> StoreImpl::check_put(NamespaceHandle ns, const block::RecordId& id, Bytes foreign) {
  const GroupInfo* group = group_of(ns, id.group);
  if (group == nullptr) return fail(Code::kInvalid, "the namespace has no such group");
  if (foreign.size() > kForeignKeyBytesMax) return fail(Code::kInvalid, "the foreign key is longer than 256 bytes");
  if (recovering()) {  // what is still to be read may have it, or a newer one
    stats_.puts_refused.add();
    return fail(Code::kBusy, "the store is recovering");
  }
  return group;
}

Result<PutHandle> StoreImpl::begin_put(NamespaceHandle ns, const block::RecordId& id, Bytes foreign) {
  const auto group = check_put(ns, id, foreign);
  if (!group) return fail(group.error());
  if (tier_ != nullptr) tier_->demoter.activity();
  const RecordKey key = namespaces_->key_of(ns, id);
  if (PoolRecord* present = find_usable(key)) {
    stats_.puts_duplicate.add();
    used(*present);
    return PutHandle();
  }
  if (const auto found = find_on_flash(key)) {
    stats_.puts_duplicate.add();
    tier_->flash.segments.touch(found->place.segment);
    return PutHandle();
  }
  return start_put(key, **group, foreign);
}

Result<PutHandle> StoreImpl::begin_replacement(NamespaceHandle ns, const block::RecordId& id, Bytes foreign) {
  const auto group = check_put(ns, id, foreign);
  if (!group) return fail(group.error());
  if (tier_ != nullptr) tier_->demoter.activity();
  auto put = start_put(namespaces_->key_of(ns, id), **group, foreign);
  if (put) record_of(*put).replaces = true;
  return put;
}

Result<PutHandle> StoreImpl::start_put(const RecordKey& key, const GroupInfo& group, Bytes foreign) {
  const block::RecordShape& shape = foreign.empty() ? group.native : group.foreign;
  const bool full = unfinished_bytes_ + shape.record_bytes() > pool_->bytes() / 100 * kUnfinishedPercentMax;
  PoolRecord* record = full || drain_ != nullptr ? nullptr : pool_->allocate(key, shape);
  if (record == nullptr) {
    stats_.puts_refused.add();
    return full ? fail(Code::kBusy, "unfinished puts hold their share of the pool")
                : fail(crowded(key, shape.record_bytes()));
  }
  unfinished_bytes_ += record->bytes();
  stats_.unfinished_puts.add(1);
  // The foreign key waits where the table page will hold it; slabs are the caller's, their padding is ours.
  if (!foreign.empty()) std::ranges::copy(foreign, record->image);
  record->foreign = {record->image, foreign.size()};
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
    std::memset(record->slab(layer) + shape.slab_bytes, 0, shape.slab_stride - shape.slab_bytes);
  return handle_of(*record);
}

void StoreImpl::drop_put(PoolRecord& record) noexcept {
  unfinished_bytes_ -= record.bytes();
  stats_.unfinished_puts.sub(1);
  pool_->detach(record);
}

void StoreImpl::complete_put(PutHandle put, std::span<const std::uint64_t> checksums, AckLevel level,
                             std::move_only_function<void(Status)> on_ack) {
  PoolRecord* record = take_record(put);
  KVD_CHECK(record != nullptr && checksums.size() == record->shape->layers);
  const RecordKey key = record->key;
  if (record->replaces) {
    supersede(*record);
  } else if (find_usable(key) != nullptr || find_on_flash(key)) {
    stats_.puts_duplicate.add();
    drop_put(*record);
    return await(key.ns, key.id, level, std::move(on_ack));
  }
  unfinished_bytes_ -= record->bytes();
  stats_.unfinished_puts.sub(1);
  if (record->shape->table_bytes == 0) {
    record->own_checksum = checksums[0];
    record->checksums = {&record->own_checksum, 1};
    record->foreign = {};
  } else {
    std::array<std::byte, kForeignKeyBytesMax> foreign;
    const std::size_t foreign_bytes = record->foreign.size();
    std::ranges::copy(record->foreign, foreign.begin());
    block::encode_table(record->table_page(), record->seed, checksums, Bytes(foreign).first(foreign_bytes));
    const auto table = block::decode_table(record->table_page(), record->seed, *record->shape);
    KVD_CHECK(table.has_value());
    record->own_checksum = table->checksum;
    record->checksums = table->slabs;
    record->foreign = table->foreign;
  }
  record->published = loop_.now();
  stats_.puts.add();
  stats_.bytes_put.add(std::uint64_t{record->shape->layers} * record->shape->slab_bytes);
  const bool flash_on = tier_ != nullptr && tier_->flash.on() && Flash::admits(*record);
  if (tier_ != nullptr && !flash_on && !record->replaced.empty()) {
    tier_->flash.bury_replaced(*record);
    tier_->demoter.kick();  // nothing else would have the tombstone written
  }
  if (flash_on) record->put_seq = tier_->flash.put_seq_next++;
  record->missed = tier_ != nullptr && !tier_->flash.on();
  pool_->publish(*record, flash_on ? PoolRecord::State::kDirty : PoolRecord::State::kClean);
  if (flash_on) tier_->demoter.add(*record);
  await(key.ns, key.id, level, std::move(on_ack));
}

void StoreImpl::supersede(PoolRecord& record) {
  PoolRecord* old = pool_->find(record.key);
  if (old != nullptr) stats_.puts_replacing.add();
  if (tier_ != nullptr) {
    Flash& flash = tier_->flash;
    tier_->demoter.end_doubts();
    if (old != nullptr) {
      record.replaced = std::exchange(old->replaced, {});
      if (old->frame != nullptr || flash.backs(old->place))
        record.note_replaced({old->place.segment, old->place.generation});
      tier_->demoter.replace(*old, record);
      tier_->loader.abandon(*old, fail(Code::kNotFound, "the record was replaced"));
    }
    if (const auto found = flash.known(record.key.hash)) {
      if (old == nullptr) stats_.puts_replacing.add();
      record.note_replaced({found->place.segment, found->place.generation});
      flash.leave(record.key, found->place.segment, found->place.offset);
    }
    for (const ReplacedPlace& place : take_unindexed(record.key.hash)) record.note_replaced(place);
  }
  if (old != nullptr) pool_->detach(*old);
}

std::vector<ReplacedPlace> StoreImpl::take_unindexed(std::uint64_t hash) {
  std::vector<ReplacedPlace> places = tier_->flash.take_strays(hash);
  for (const auto& log : tier_->logs)
    for (const std::uint32_t segment : log->evictor.removed_from(hash))
      places.push_back({segment, tier_->flash.segments.at(segment).generation});
  return places;
}

void StoreImpl::await(NamespaceHandle ns, const block::RecordId& id, AckLevel level,
                      std::move_only_function<void(Status)> on_ack) {
  if (recovering()) return on_ack(fail(Code::kBusy, "the store is recovering"));
  const RecordKey key = namespaces_->key_of(ns, id);
  PoolRecord* record = find_usable(key);
  const auto found = record == nullptr ? find_on_flash(key) : std::nullopt;
  if (record == nullptr && !found) return on_ack(fail(Code::kNotFound, "no such record"));
  if (level == AckLevel::kPooled) return on_ack({});
  if (tier_ == nullptr) return on_ack(fail(Code::kIo, "there is no flash tier"));
  if (record != nullptr) return tier_->demoter.acknowledge(*record, level, std::move(on_ack));
  tier_->demoter.acknowledge(key, found->place, level, std::move(on_ack));
}

// ---- Damage ----

bool StoreImpl::sound(const PoolRecord& record) {
  if (record.shape->table_bytes > 0 && (record.load == nullptr || record.load->table_valid)) {
    const auto table = block::decode_table(record.table_page(), record.seed, *record.shape);
    if (!table || table->checksum != record.own_checksum) return false;
  }
  for (std::uint32_t layer = 0; layer < record.shape->layers; ++layer)
    if (record.has(layer, 1) &&
        block::slab_checksum(record.seed, layer, record.payload(layer)) != record.checksums[layer])
      return false;
  return true;
}

bool StoreImpl::check(NamespaceHandle ns, const block::RecordId& id) {
  if (group_of(ns, id.group) == nullptr) return false;
  PoolRecord* record = pool_->find(namespaces_->key_of(ns, id));
  if (record == nullptr || sound(*record)) return false;
  stats_.corrupt.add();
  if (tier_ != nullptr) {
    const Status why = fail(Code::kCorrupt, "the record went bad in the pool");
    if (record->frame != nullptr) {  // what is being written is no better, and its tombstone ends an older copy as well
      bury(record->key, record->place);
      if (const auto known = tier_->flash.known(record->key.hash)) bury(record->key, known->place);
    }
    if (record->missed)  // its image may be in a frame that the device had when it went off
      for (const ReplacedPlace& place : take_unindexed(record->key.hash)) record->note_replaced(place);
    tier_->flash.bury_replaced(*record);
    tier_->demoter.forget(*record, why);
    tier_->loader.abandon(*record, why);
  }
  pool_->detach(*record);
  return true;
}

// ---- Removal ----

// Notes that the record at `place` is removed, for as long as its segment lives. `put_seq`: see Flash::bury().
void StoreImpl::bury(const RecordKey& key, const FlashPlace& place, std::uint64_t put_seq) {
  Flash& flash = tier_->flash;
  flash.leave(key, place.segment, place.offset);
  flash.bury(key, place.segment, place.generation, put_seq);
  tier_->demoter.kick();
}

// Its place may have been given to another record since; then there is nothing to forget.
void StoreImpl::forget_passing(const PoolRecord& image) {
  const auto found = tier_->flash.find(image.key.hash);
  if (found && found->place == image.place) forget_copy(image.key, image.place);
}

// What flash holds of a record is damaged. An image in the pool that was not read from there is sound: it stays, and
// who wants it on flash gets another copy. Where that is on its way the tombstone must not end it.
void StoreImpl::forget_copy(const RecordKey& key, const FlashPlace& place) {
  PoolRecord* const record = pool_->find(key);
  if (record != nullptr && record->state == PoolRecord::State::kClean && record->place == place) {
    if (record->load != nullptr && !record->load->passing) return forget_record(*record);
    record->place = {};
  }
  const bool succeeded = record != nullptr && record->state == PoolRecord::State::kDirty;
  bury(key, place, succeeded ? record->put_seq : 0);
}

// Takes a published record out of pool and index. Before recovery has ended no tombstone can be written: whoever asks
// for the record behind it finds out again.
void StoreImpl::forget_record(PoolRecord& record) {
  if (recovering_) {
    tier_->flash.hide(record.key.hash);
    if (record.load != nullptr && record.load->passing) return;
    tier_->loader.abandon(record, fail(Code::kNotFound, "the record was dropped"));
    return pool_->detach(record);
  }
  if (record.load != nullptr && record.load->passing) return forget_passing(record);
  if (tier_ != nullptr) {
    if (record.frame != nullptr || (record.state == PoolRecord::State::kClean && tier_->flash.backs(record.place)))
      bury(record.key, record.place);
    tier_->flash.bury_replaced(record);
    tier_->demoter.forget(record, fail(Code::kCancelled, "the record was removed"));
    tier_->loader.abandon(record, fail(Code::kNotFound, "the record was removed"));
  }
  pool_->detach(record);
}

bool StoreImpl::remove(NamespaceHandle ns, const block::RecordId& id) {
  KVD_CHECK(!recovering());  // what is read later could bring it back
  if (tier_ != nullptr) tier_->demoter.end_doubts();
  if (group_of(ns, id.group) == nullptr) return false;
  const RecordKey key = namespaces_->key_of(ns, id);
  bool present = false;
  if (PoolRecord* record = pool_->find(key)) {
    present = usable(*record);
    forget_record(*record);
  }
  if (tier_ != nullptr) {
    tier_->demoter.activity();
    // Also what its tenant has given up: the next start would find it again.
    if (const auto found = tier_->flash.known(key.hash)) {
      present = present || serves(namespaces_->tenant(key.ns), found);
      bury(key, found->place);
    }
    for (const ReplacedPlace& place : take_unindexed(key.hash)) {
      tier_->flash.bury(key, place.segment, place.generation);
      tier_->demoter.kick();
    }
  }
  if (present) stats_.removes.add();
  return present;
}

void StoreImpl::await_removals(std::move_only_function<void(Status)> on_ack) {
  if (tier_ == nullptr) return on_ack({});
  tier_->demoter.await_removals(std::move(on_ack));
}

// ---- The tier as a whole ----

void StoreImpl::drain(Time deadline, std::move_only_function<void()> on_done) {
  drain_ = std::make_unique<Drain>(loop_, [this] { check_drain(); });
  drain_->deadline = deadline;
  drain_->on_done = std::move(on_done);
  drain_->dropped_before = stats_.writes_dropped.value();
  if (tier_ != nullptr) tier_->ends();
  drain_->timer.arm(loop_.now());
}

// Looks every few milliseconds, because a drain happens once and must not cost anything before.
void StoreImpl::check_drain() {
  Drain& drain = *drain_;
  // Before recovery has ended nothing was taken that would have to be written.
  const bool over = tier_ == nullptr || recovering_ || !tier_->flash.on() || (drain.synced && list_uses()) ||
                    loop_.now() >= drain.deadline;
  if (!over) {
    if (drain.synced) return drain.timer.arm_in(Millis(2));
    if (!drain.rolled && tier_->demoter.settled() && !walk_.armed()) {
      drain.rolled = true;
      for (const auto& log : tier_->logs) log->writer.roll();
    }
    // Not settled any more: the flush for a footer has failed, and what it may have lost is written again.
    const bool idle = std::ranges::all_of(
        tier_->logs, [](const auto& log) { return !log->device.health.on() || log->writer.idle(); });
    if (drain.rolled && !drain.syncing && idle && tier_->demoter.settled()) sync_all();
    drain.timer.arm_in(Millis(2));
    return;
  }
  tell_losses();
  if (auto on_done = std::move(drain.on_done)) on_done();
}

void StoreImpl::sync_all() {
  struct Flushes {
    std::size_t left = 0;
    bool well = true;
  };
  const auto flushes = std::make_shared<Flushes>();
  drain_->syncing = true;
  for (const auto& log : tier_->logs) flushes->left += log->device.health.on() ? 1 : 0;
  for (const auto& log : tier_->logs) {
    if (!log->device.health.on()) continue;
    log->syncs.request([this, flushes](const Status& status) {
      flushes->well = flushes->well && status;
      if (--flushes->left > 0 || drain_ == nullptr) return;
      drain_->synced = flushes->well;
      if (!flushes->well) drain_->rolled = drain_->syncing = false;  // what they may have lost is dirty again
    });
  }
}

// What a drain that is over has not brought to flash.
void StoreImpl::tell_losses() {
  if (tier_ == nullptr) return;
  if (!tier_->flash.on()) {
    log_.warn(fmt::format("store {}: the flash tier is off: what is in memory only is lost, engines will miss it",
                          options_.dir));
  } else if (const std::uint64_t records = stats_.dirty_records.value(); records > 0) {
    log_.warn(fmt::format(
        "store {}: {} in {} records could not be written to flash in time and are lost, engines will miss them",
        options_.dir, show_size(stats_.dirty_bytes.value()), records));
  } else if (const std::uint64_t dropped = stats_.writes_dropped.value() - drain_->dropped_before; dropped > 0) {
    log_.warn(fmt::format("store {}: {} records were beyond the write budget and are lost, engines will miss them",
                          options_.dir, dropped));
  }
}

}  // namespace kvd::store
