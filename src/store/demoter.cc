#include "store/demoter.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvd::store {
namespace {

Status not_written() { return fail(Code::kIo, "the record could not be written"); }
Status budget_spent() { return fail(Code::kBusy, "the write budget is spent"); }
Status beyond_quota() { return fail(Code::kBusy, "the record is larger than the tenant's quota of flash"); }

}  // namespace

Demoter::Demoter(Flash& flash, Pool& pool, DeviceLog& log, Timing timing)
    : flash_(flash),
      pool_(pool),
      device_(log.device),
      writer_(log.writer),
      evictor_(log.evictor),
      syncs_(log.syncs),
      timing_(timing),
      last_activity_(flash.loop.now()),
      pump_(flash.loop, [this] { pump(); }),
      acks_(flash.loop, [this] { tell_acks(); }),
      ack_nodes_(pool.reserved(kAcksReserved)) {
  due_.reserve(pool.reserved(kAcksReserved));
  telling_.reserve(pool.reserved(kAcksReserved));
  const auto begins = [this] {
    device_.tombstones.flush_begins();
    device_.segments.flush_begins();
  };
  syncs_.on_flush(begins, [this](bool ok) { flushed(ok); });
  writer_.on_frame([this](Frame& frame, const Status& status) { frame_done(frame, status); });
}

// ---- What is to be written ----

void Demoter::add(PoolRecord& record) {
  KVD_CHECK(record.state == PoolRecord::State::kDirty);
  dirty_bytes_ += record.bytes();
  flash_.stats.dirty_bytes.add(record.bytes());
  flash_.stats.dirty_records.add(1);
  TenantSpace& tenant = *record.tenant;
  tenant.dirty_bytes += record.bytes();
  if (record.acks_first == nullptr) {
    waiting_.push_back(record);
    tenant.waiting.push_back(record);
    sort_in(tenant);
  } else {
    urgent_.push_back(record);
  }
  if (tenant.dirty_bytes > tenant.quota.pool_bytes / 2) press(tenant);
  kick();
}

void Demoter::uncount(const PoolRecord& record) {
  dirty_bytes_ -= record.bytes();
  flash_.stats.dirty_bytes.sub(record.bytes());
  flash_.stats.dirty_records.sub(1);
  if (dirty_bytes_ < pool_.bytes() / 4) pressure_ = false;
  TenantSpace& tenant = *record.tenant;
  tenant.dirty_bytes -= record.bytes();
  if (tenant.dirty_bytes <= tenant.quota.pool_bytes / 4) tenant.pressing = false;
  sort_in(tenant);
}

// Nothing, where it is in a frame.
void Demoter::dequeue(PoolRecord& record) {
  if (urgent_.holds(record)) urgent_.erase(record);
  if (!waiting_.holds(record)) return;
  waiting_.erase(record);
  record.tenant->waiting.erase(record);
  sort_in(*record.tenant);
}

void Demoter::sort_in(TenantSpace& tenant) {
  const bool writes = tenant.pressing && !tenant.waiting.empty();
  if (writes && !pressing_.holds(tenant)) pressing_.push_back(tenant);
  if (!writes && pressing_.holds(tenant)) pressing_.erase(tenant);
}

void Demoter::forget(PoolRecord& record, const Status& why) {
  if (record.state != PoolRecord::State::kDirty) return;
  dequeue(record);
  uncount(record);
  take_acks(record, why);
}

void Demoter::replace(PoolRecord& record, PoolRecord& by) {
  if (record.state != PoolRecord::State::kDirty) return;
  dequeue(record);
  uncount(record);
  // Where `by` will not be queued nobody would tell them.
  if (!device_.health.on()) return take_acks(record, tier_is_off());
  if (!Flash::admits(by)) return take_acks(record, beyond_quota());
  by.acks_first = std::exchange(record.acks_first, nullptr);
  by.acks_last = std::exchange(record.acks_last, nullptr);
}

void Demoter::acknowledge(PoolRecord& record, AckLevel level, std::move_only_function<void(Status)> on_ack) {
  if (level == AckLevel::kPooled) return on_ack({});
  if (!device_.health.on()) return on_ack(tier_is_off());
  if (record.missed && record.state == PoolRecord::State::kClean) static_cast<void>(take_copy(record));
  const bool backed =
      flash_.backs(record.place) && !flash_.usage.given_up(*record.tenant, record.place.segment, record.place.offset);
  const bool unsafe = backed && level == AckLevel::kSynced && flash_.segments.at(record.place.segment).unflushed;
  if (record.state == PoolRecord::State::kClean && record.load == nullptr && (!backed || unsafe)) {
    // It would only be dropped. Beside copies that count no more are begun than can be written.
    const bool admitted = Flash::admits(record);
    if (!admitted || device_.over_budget(unsafe ? dirty_bytes_ + record.bytes() : 0)) {
      due_.emplace_back(std::move(on_ack), admitted ? budget_spent() : beyond_quota());
      return acks_.arm(flash_.loop.now());
    }
    // Its segment was given up while it stayed in DRAM, or a flush of it failed; now somebody wants it on flash. A copy
    // that there is counts until the new one is written.
    write_again(record);
  }
  if (record.state == PoolRecord::State::kDirty) {
    add_ack(record, level, std::move(on_ack));
    if (waiting_.holds(record)) {
      dequeue(record);
      urgent_.push_back(record);
    }
    return kick();
  }
  if (level == AckLevel::kWritten) return on_ack({});
  if (unsafe) return on_ack(fail(Code::kIo, "a flush of the record's segment failed"));
  syncs_.request(std::move(on_ack));
}

// A clean record, newer than any copy of it.
void Demoter::write_again(PoolRecord& record) {
  record.put_seq = flash_.put_seq_next++;
  record.published = flash_.loop.now();
  record.write_failures = 0;
  record.missed = false;
  pool_.dirty(record);
  add(record);
}

void Demoter::flushed(bool ok) {
  if (ok) {
    device_.segments.flushed();
    device_.tombstones.flushed();
    return evictor_.tombstones_durable();
  }
  device_.segments.flush_failed();
  device_.tombstones.flush_failed();
  writer_.roll();  // behind a frame that is lost a scan finds nothing
  kick();
}

void Demoter::await_removals(std::move_only_function<void(Status)> on_ack) {
  if (!device_.health.on()) return on_ack(tier_is_off());
  if (device_.tombstones.written_before(flash_.put_seq_next)) return on_ack({});
  removal_waits_.push_back({flash_.put_seq_next, std::move(on_ack)});
  kick();
}

void Demoter::pressure() {
  pressure_ = true;
  kick();
}

void Demoter::press(TenantSpace& tenant) {
  if (tenant.dirty_bytes == 0) return;  // nothing would end it
  tenant.pressing = true;
  sort_in(tenant);
  kick();
}

void Demoter::flush_always(bool always) {
  flush_always_ = always;
  kick();
}

bool Demoter::settled() const noexcept {
  return dirty_bytes_ == 0 && !device_.tombstones.pending() && writer_.in_flight() == 0 && removal_waits_.empty();
}

// ---- When ----

void Demoter::kick() {
  if (device_.health.on()) pump_.arm(flash_.loop.now());
}

bool Demoter::has_work() {
  return device_.tombstones.pending() || ((!urgent_.empty() || !waiting_.empty()) && !device_.over_budget());
}

// What to write now; where it is nothing the timer is set for when that may change.
Demoter::Which Demoter::must_write() {
  if (flush_always_ || pressure_ || device_.tombstones.carrying()) return Which::kAll;
  catching_up_ = catching_up_ && device_.tombstones.pending();
  if (catching_up_) return Which::kAll;
  if ((pressure_ = dirty_bytes_ > pool_.bytes() / 2)) return Which::kAll;
  if (!removal_waits_.empty() && device_.tombstones.pending() && writer_.in_flight() == 0) return Which::kAll;
  if (!urgent_.empty()) {
    // While a frame is on its way small ones gather, and share the next.
    std::uint64_t gathered = 0;
    for (const PoolRecord* r = urgent_.front(); r != nullptr && gathered < kShareMin; r = Queue::after(*r))
      gathered += r->bytes();
    if (gathered >= kShareMin || writer_.in_flight() == 0) return Which::kAll;
  }
  const Time now = flash_.loop.now();
  const Time idle_at = after(last_activity_, timing_.idle);
  if (!device_.tombstones.pending()) removal_at_ = kNever;
  if (device_.tombstones.pending() && removal_at_ == kNever) removal_at_ = now;
  const Time oldest = waiting_.empty() ? removal_at_ : std::min(removal_at_, waiting_.front()->published);
  const Time age_at = oldest == kNever ? kNever : after(oldest, timing_.after);
  if (now >= age_at) return Which::kAll;
  const bool reading = reading_ && reading_();
  if (now >= idle_at && !reading) return Which::kAll;
  if (!pressing_.empty()) return Which::kOfPressing;
  pump_.arm(std::min(age_at, reading ? after(now, timing_.idle) : idle_at));
  return Which::kNone;
}

void Demoter::pump() {
  take_removals();
  drop_due();
  while (has_work()) {
    const Which which = must_write();
    if (which == Which::kNone || !write_one(which)) return;
    drop_due();
  }
}

// Over the write budget: gives up what must_write() would ask for, the oldest first. What waited for idleness only
// waits on, and is looked at again when it is due.
void Demoter::drop_due() {
  if (!device_.over_budget()) return;
  const auto drop = [this](PoolRecord& record) {
    flash_.stats.writes_dropped.add();
    give_up(record, budget_spent());
  };
  while (PoolRecord* record = urgent_.pop_front()) drop(*record);
  if (dirty_bytes_ > pool_.bytes() / 2) pressure_ = true;
  while (PoolRecord* record = pressing_.empty() ? waiting_.front() : pressing_.front()->waiting.front()) {
    const Time due = after(record->published, timing_.after);
    if (!flush_always_ && !pressure_ && pressing_.empty() && flash_.loop.now() < due) return pump_.arm(due);
    dequeue(*record);
    drop(*record);
  }
}

// ---- Frames ----

// False when no frame can be begun now: a completion or a ready segment calls again.
bool Demoter::write_one(Which which) {
  Frame* frame = writer_.begin_frame();
  if (frame == nullptr) return false;
  const bool over_budget = device_.over_budget();  // once: opening the frame's segment may have spent the last of it
  fill(*frame, over_budget ? Which::kNone : which);
  if (!frame->empty()) {
    writer_.submit(*frame);
    const auto records = frame->records();
    for (std::size_t i = 0; i < records.size(); ++i) records[i]->place = frame->place(i);  // for a removal meanwhile
    return true;
  }
  const bool fresh = writer_.fresh();
  writer_.give_back(*frame);
  if (!device_.tombstones.pending() && over_budget) return true;
  if (only_carried() && !device_.tombstones.next_is_carried()) return false;
  if (!fresh) {
    writer_.roll();
    return true;
  }
  // It does not fit into an empty segment, so it stays in DRAM.
  PoolRecord* record = next(which);
  KVD_CHECK(record != nullptr);
  dequeue(*record);
  give_up(*record, not_written());
  return true;
}

// The record that the next frame begins with; null: there is none, and it takes no more.
PoolRecord* Demoter::next(Which which) const noexcept {
  if (which == Which::kNone) return nullptr;
  if (!urgent_.empty()) return urgent_.front();
  if (which == Which::kAll) return waiting_.front();
  return pressing_.empty() ? nullptr : pressing_.front()->waiting.front();
}

// Whether the open segment was the last ready one. Until another is ready it takes only copies of what its old holders
// still have: if the machine stops now it can be given up at once, when everything else may hold tombstones that count.
bool Demoter::only_carried() const noexcept { return device_.segments.ready_count() == 0; }

void Demoter::fill(Frame& frame, Which which) {
  Tombstones& tombstones = device_.tombstones;
  while (tombstones.pending() && (!only_carried() || tombstones.next_is_carried()) &&
         frame.add(tombstones.next_pending()))
    tombstones.take_pending();
  if (only_carried()) return;
  while (PoolRecord* record = next(which)) {
    const bool large_enough = frame.payload_bytes() >= kFrameTarget;
    const bool too_large = frame.payload_bytes() > 0 && frame.payload_bytes() + record->bytes() > kFrameMax;
    if (large_enough || too_large || !frame.add(*record)) break;
    dequeue(*record);
    record->in_frame = true;
    pool_.hold(*record);
  }
  if (TenantSpace* const first = pressing_.pop_front()) pressing_.push_back(*first);
}

void Demoter::frame_done(Frame& frame, const Status& status) {
  const OpenSegment& segment = frame.segment();
  // Where a flush has failed meanwhile, a scan may not come as far as this frame.
  const bool reachable = status && !flash_.segments.at(segment.id).unflushed;
  for (const Tombstone& tombstone : frame.tombstones()) {
    if (reachable) device_.tombstones.written(tombstone, segment.id, segment.generation);
    if (!reachable) device_.failed(tombstone);
  }
  if (reachable && !frame.tombstones().empty()) {
    flash_.stats.tombstones.add(frame.tombstones().size());
    syncs_.request([](Status) {});  // a removal is to outlive a power loss without anybody asking
  }
  const auto records = frame.records();
  for (std::size_t i = 0; i < records.size(); ++i) {
    PoolRecord& record = *records[i];
    record.in_frame = false;
    if (record.state == PoolRecord::State::kDirty) {
      // What a scan may not come as far as does not take the place of a copy that it finds.
      if (reachable || (status && !flash_.known(record.key.hash))) {
        record_written(record, frame.place(i));
      } else {
        record_failed(record, frame.place(i));
      }
    }
    pool_.release(record);
  }
  flash_.update_gauges();
  kick();
}

void Demoter::record_written(PoolRecord& record, const FlashPlace& place) {
  if (!device_.health.on()) {
    note_stray(record, place);
    return give_up(record, tier_is_off());
  }
  const auto known = flash_.known(record.key.hash);
  if (!known && flash_.index.size() >= flash_.index.records_max()) evictor_.make_index_room();
  const IndexEntry entry{place.segment, place.offset, record.pages, 0, place.checksum};
  const bool admitted = Flash::admits(record);  // the quota may have become smaller meanwhile
  TenantSpace& tenant = *record.tenant;
  if (admitted && tenant.quota.flash_bytes != SpaceQuota::kUnlimited) flash_.usage.make_room(tenant, record.bytes());
  FlashPlace outdated;
  bool inserted = admitted && flash_.enter(record.key, entry, &outdated);
  while (admitted && !inserted && evictor_.make_index_room_now()) inserted = flash_.enter(record.key, entry, &outdated);
  if (!inserted) {
    // Unfindable on flash: a tombstone keeps it from coming back at the next start after a removal.
    end_copies(record.key, place);
    return give_up(record, admitted ? not_written() : beyond_quota());
  }
  record.place = place;
  // Older copies must not outlive it.
  std::vector<ReplacedPlace> copies = flash_.take_strays(record.key.hash);
  if (outdated.generation != 0) copies.push_back({outdated.segment, outdated.generation});
  flash_.replaced_by(record, place, copies);
  uncount(record);
  pool_.clean(record);
  take_acks(record, {});
}

// It may be on the medium at `place`, and is not known to be.
void Demoter::note_stray(const PoolRecord& record, const FlashPlace& place) {
  if (!device_.strays.add(record.key.hash, {place.segment, place.generation})) end_copies(record.key, place);
}

// Buries what was, or may have been, written at `place`. Its tombstone is newer than a copy that is known, and ends it,
// too: so nobody is promised that any more.
void Demoter::end_copies(const RecordKey& key, const FlashPlace& place) {
  if (const auto known = flash_.known(key.hash)) {
    flash_.leave(key, known->place.segment, known->place.offset);
    flash_.bury(key, known->place.segment, known->place.generation);
  }
  flash_.bury(key, place.segment, place.generation);
}

// The frame may be on the medium all the same, and as long as its segment has no footer a scan would find it there. So
// the failed copy is buried, and what is written from now on is newer than that. The tombstone would end an older copy,
// too. What this record replaces has left the index; so where one is known, either may be found.
void Demoter::record_failed(PoolRecord& record, const FlashPlace& place) {
  const bool rewrite = flash_.known(record.key.hash).has_value();
  rewrite ? note_stray(record, place) : end_copies(record.key, place);
  record.put_seq = flash_.put_seq_next++;
  record.place = {};
  if (!device_.health.on()) return give_up(record, tier_is_off());
  if (++record.write_failures > 1) return give_up(record, not_written());
  urgent_.push_front(record);
}

// Where flash has the same bytes.
std::optional<FlashPlace> Demoter::copy_of(const PoolRecord& record) const {
  const auto copy = flash_.find(record.key.hash);
  if (!copy || copy->place.checksum != static_cast<std::uint32_t>(record.own_checksum)) return std::nullopt;
  return copy->place;
}

// The record will not be on flash, but for a copy that there may be; it stays in the pool as long as there is room.
void Demoter::give_up(PoolRecord& record, const Status& why) {
  record.place = copy_of(record).value_or(FlashPlace{});
  record.missed = !device_.health.on();
  flash_.bury_replaced(record);
  uncount(record);
  pool_.clean(record);
  take_acks(record, why);
}

// ---- A device that goes off and comes back ----

void Demoter::device_off() {
  pump_.disarm();
  while (PoolRecord* record = next(Which::kAll)) {
    dequeue(*record);
    give_up(*record, tier_is_off());
  }
  // The device may keep a frame for ever: the images stay with it, but nobody waits for it. It may also land.
  writer_.visit_in_flight([this](const Frame& frame) {
    for (std::size_t i = 0; i < frame.records().size(); ++i) {
      PoolRecord& record = *frame.records()[i];
      record.in_frame = false;
      if (record.state != PoolRecord::State::kDirty) continue;
      note_stray(record, frame.place(i));
      give_up(record, tier_is_off());
    }
  });
  take_removals();
  syncs_.give_up();
}

void Demoter::device_back() {
  catching_up_ = true;
  kick();
}

// Of a record that was put while the device was off flash may have a copy: it counts as on flash then. Another version
// of it does not: who waits for `synced` means these bytes.
bool Demoter::take_copy(PoolRecord& record) {
  const auto copy = copy_of(record);
  if (!copy || flash_.usage.given_up(*record.tenant, copy->segment, copy->offset)) return false;
  record.place = *copy;
  record.missed = false;
  return true;
}

bool Demoter::catch_up(PoolRecord& record) {
  if (record.state != PoolRecord::State::kClean || record.load != nullptr) return true;
  if (!record.missed && !flash_.lost(record.place)) return true;
  if (take_copy(record)) return true;
  if (!Flash::admits(record) || device_.over_budget(dirty_bytes_ + record.bytes())) return true;
  if (dirty_bytes_ > 0 && dirty_bytes_ + record.bytes() > pool_.bytes() / 4) return false;
  record.place = {};
  write_again(record);
  return true;
}

// ---- Acknowledgements ----

void Demoter::add_ack(PoolRecord& record, AckLevel level, std::move_only_function<void(Status)> on_ack) {
  PoolRecord::Ack& ack = ack_nodes_.take();
  ack.level = level;
  ack.on_ack = std::move(on_ack);
  (record.acks_first == nullptr ? record.acks_first : record.acks_last->next) = &ack;
  record.acks_last = &ack;
}

void Demoter::take_acks(PoolRecord& record, const Status& status) {
  PoolRecord::Ack* next = std::exchange(record.acks_first, nullptr);
  record.acks_last = nullptr;
  while (next != nullptr) {
    PoolRecord::Ack& ack = *std::exchange(next, next->next);
    if (status && ack.level == AckLevel::kSynced && flash_.segments.at(record.place.segment).unflushed) {
      due_.emplace_back(std::move(ack.on_ack), fail(Code::kIo, "a flush of the record's segment failed"));
    } else if (status && ack.level == AckLevel::kSynced) {
      syncs_.request(std::move(ack.on_ack));
    } else {
      due_.emplace_back(std::move(ack.on_ack), status);
    }
    ack_nodes_.give_back(ack);
  }
  if (!due_.empty()) acks_.arm(flash_.loop.now());
}

void Demoter::take_removals() {
  const bool on = device_.health.on();
  while (!removal_waits_.empty() && (!on || device_.tombstones.written_before(removal_waits_.front().before))) {
    due_.emplace_back(std::move(removal_waits_.front().on_ack), on ? Status{} : Status(tier_is_off()));
    removal_waits_.pop_front();
  }
  if (!due_.empty()) acks_.arm(flash_.loop.now());
}

void Demoter::tell_acks() {
  telling_.swap(due_);
  for (auto& [on_ack, status] : telling_) on_ack(status);
  telling_.clear();
}

}  // namespace kvd::store
