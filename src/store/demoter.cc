#include "store/demoter.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvd::store {
namespace {

Status not_written() { return fail(Code::kIo, "the record could not be written"); }

std::vector<std::uint64_t> sizes_of(const DeviceLogs& logs) {
  std::vector<std::uint64_t> bytes;
  for (const auto& log : logs) bytes.push_back(log->device.segments.count() * log->device.volume.segment_bytes());
  return bytes;
}

}  // namespace

Demoter::Demoter(Flash& flash, Pool& pool, const DeviceLogs& logs, Timing timing)
    : flash_(flash),
      pool_(pool),
      logs_(logs),
      timing_(timing),
      placement_(sizes_of(logs)),
      last_activity_(flash.loop.now()),
      pump_(flash.loop, [this] { pump(); }),
      acks_(flash.loop, [this] { tell_acks(); }),
      ack_nodes_(pool.reserved(kAcksReserved)) {
  due_.reserve(pool.reserved(kAcksReserved));
  telling_.reserve(pool.reserved(kAcksReserved));
  for (const auto& each : logs_) {
    DeviceLog& log = *each;
    const auto begins = [&log] {
      log.device.tombstones.flush_begins();
      log.device.segments.flush_begins();
    };
    log.syncs.on_flush(begins, [this, &log](bool ok) { flushed(log, ok); });
    log.writer.on_frame([this, &log](Frame& frame, const Status& status) { frame_done(log, frame, status); });
  }
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
  if (!flash_.on()) return take_acks(record, tier_is_off());
  if (!Flash::admits(by)) return take_acks(record, beyond_quota());
  by.acks_first = std::exchange(record.acks_first, nullptr);
  by.acks_last = std::exchange(record.acks_last, nullptr);
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

void Demoter::flushed(DeviceLog& log, bool ok) {
  FlashDevice& device = log.device;
  if (ok) {
    device.segments.flushed();
    device.tombstones.flushed();
    tombstones_durable();
    if (pending()) kick();  // where they wait for a place, one may be made now
    return;
  }
  device.segments.flush_failed();
  device.tombstones.flush_failed();
  log.writer.roll();  // behind a frame that is lost a scan finds nothing
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
  return dirty_bytes_ == 0 && !pending() && !any([](const DeviceLog& log) { return log.writer.in_flight() > 0; }) &&
         removal_waits_.empty() && !(flash_.doubts_end && flash_.in_doubt());
}

// ---- When ----

void Demoter::kick() {
  if (flash_.on()) pump_.arm(flash_.loop.now());
}

bool Demoter::has_work() { return pending() || ((!urgent_.empty() || !waiting_.empty()) && !over_budget()); }

// What to write now; where it is nothing the timer is set for when that may change.
Demoter::Which Demoter::must_write() {
  const auto idle = [](const DeviceLog& log) { return log.writer.in_flight() == 0; };
  const auto carrying = [](const DeviceLog& log) { return log.device.tombstones.carrying(); };
  if (flush_always_ || pressure_ || any(carrying)) return Which::kAll;
  for (const auto& log : logs_) log->catching_up = log->catching_up && log->device.tombstones.pending();
  if (any([](const DeviceLog& log) { return log.catching_up; })) return Which::kAll;
  if ((pressure_ = dirty_bytes_ > pool_.bytes() / 2)) return Which::kAll;
  const auto removes = [&](const DeviceLog& log) { return log.device.tombstones.pending() && idle(log); };
  if (!removal_waits_.empty() && any(removes)) return Which::kAll;
  if (!urgent_.empty()) {
    // While a frame is on its way small ones gather, and share the next.
    std::uint64_t gathered = 0;
    for (const PoolRecord* r = urgent_.front(); r != nullptr && gathered < kShareMin; r = Queue::after(*r))
      gathered += r->bytes();
    if (gathered >= kShareMin || any(idle)) return Which::kAll;
  }
  const Time now = flash_.loop.now();
  const Time idle_at = after(last_activity_, timing_.idle);
  const bool removals = pending();
  if (!removals) removal_at_ = kNever;
  if (removals && removal_at_ == kNever) removal_at_ = now;
  const Time oldest = waiting_.empty() ? removal_at_ : std::min(removal_at_, waiting_.front()->published);
  const Time age_at = oldest == kNever ? kNever : after(oldest, timing_.after);
  if (now >= age_at) return Which::kAll;
  const bool reading = reading_ && reading_();
  if (now >= idle_at && !reading) return Which::kAll;
  if (!pressing_.empty()) return Which::kOfPressing;
  pump_.arm(std::min(age_at, reading ? after(now, timing_.idle) : idle_at));
  return Which::kNone;
}

// Segments of any device may have waited for those of one.
void Demoter::tombstones_durable() {
  for (const auto& log : logs_) log->evictor.tombstones_durable();
}

void Demoter::pump() {
  for (const auto& log : logs_) log->evictor.end_doubts();
  if (logs_.size() > 1) tombstones_durable();  // or a device is off, or what they name was given up
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
  if (!flash_.on() || !over_budget()) return;
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
  std::uint32_t can = 0;
  for (std::size_t i = 0; i < logs_.size(); ++i) {
    FlashDevice& device = logs_[i]->device;
    const bool records = next(which) != nullptr && takes_records(*logs_[i]);
    if (device.health.on() && (records || device.tombstones.pending())) can |= std::uint32_t{1} << i;
  }
  for (auto device = placement_.next(can); device; device = placement_.next(can)) {
    if (write_to(*logs_[*device], which)) return true;
    can &= ~(std::uint32_t{1} << *device);
  }
  return false;
}

// Or tombstones only: what has no place in the index has to be removed again, as what is in frames by now may have to.
// What is there already, and would need none, waits with the others.
bool Demoter::takes_records(DeviceLog& log) { return !log.device.over_budget() && !log.writer.index_waits(); }

// The same of one device.
bool Demoter::write_to(DeviceLog& log, Which which) {
  Tombstones& tombstones = log.device.tombstones;
  Frame* frame = log.writer.begin_frame();
  if (frame == nullptr) return false;
  const bool takes = takes_records(log);  // once: opening the frame's segment may have spent the last of the budget
  fill(log, *frame, takes ? which : Which::kNone);
  if (!frame->empty()) {
    placement_.wrote(flash_.segments.at(frame->segment().id).device, frame->payload_bytes());
    log.writer.submit(*frame);
    const auto records = frame->records();
    for (std::size_t i = 0; i < records.size(); ++i) records[i]->place = frame->place(i);  // for a removal meanwhile
    return true;
  }
  const bool fresh = log.writer.fresh();
  log.writer.give_back(*frame);
  if (!tombstones.pending() && !takes) return true;
  if (only_carried(log) && !tombstones.next_is_carried()) return false;
  if (!fresh) {
    log.writer.roll();
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
bool Demoter::only_carried(const DeviceLog& log) noexcept { return log.device.segments.ready_count() == 0; }

void Demoter::fill(DeviceLog& log, Frame& frame, Which which) {
  Tombstones& tombstones = log.device.tombstones;
  while (tombstones.pending() && (!only_carried(log) || tombstones.next_is_carried()) &&
         frame.add(tombstones.next_pending()))
    tombstones.take_pending();
  if (only_carried(log)) return;
  while (PoolRecord* record = next(which)) {
    const bool large_enough = frame.payload_bytes() >= kFrameTarget;
    const bool too_large = frame.payload_bytes() > 0 && frame.payload_bytes() + record->bytes() > kFrameMax;
    if (large_enough || too_large || !frame.add(*record)) break;
    dequeue(*record);
    record->frame = &frame;
    pool_.hold(*record);
  }
  if (TenantSpace* const first = pressing_.pop_front()) pressing_.push_back(*first);
}

// A record that was in it when its device went off is not its record any more.
void Demoter::frame_done(DeviceLog& log, Frame& frame, const Status& status) {
  const OpenSegment& segment = frame.segment();
  // Where a flush has failed meanwhile, a scan may not come as far as this frame.
  const bool reachable = status && !flash_.segments.at(segment.id).unflushed;
  log.device.tombstones.lie_in(segment.id, frame.tombstones().size());
  for (const Tombstone& tombstone : frame.tombstones()) {
    if (reachable) log.device.tombstones.written(tombstone, segment.id, segment.generation);
    if (!reachable) log.device.failed(tombstone);
  }
  if (reachable && !frame.tombstones().empty()) {
    flash_.stats.tombstones.add(frame.tombstones().size());
    log.syncs.request([](Status) {});  // a removal is to outlive a power loss without anybody asking
  }
  const auto records = frame.records();
  for (std::size_t i = 0; i < records.size(); ++i) {
    PoolRecord& record = *records[i];
    const bool its = record.frame == &frame;
    if (its) record.frame = nullptr;
    if (its && record.state == PoolRecord::State::kDirty) {
      // What a scan may not come as far as does not take the place of a copy that it finds.
      if (reachable || (status && !flash_.known(record.key.hash))) {
        record_written(log, record, frame.place(i));
      } else {
        record_failed(record, frame.place(i));
      }
    }
    pool_.release(record);
  }
  flash_.update_gauges();
  kick();
}

void Demoter::record_written(DeviceLog& log, PoolRecord& record, const FlashPlace& place) {
  if (!log.device.health.on()) {
    note_stray(record, place);
    return write_elsewhere(record);
  }
  const auto known = flash_.known(record.key.hash);
  if (!known && flash_.index.size() >= flash_.index.records_max()) log.evictor.make_index_room();
  const IndexEntry entry{place.segment, place.offset, record.pages, 0, place.checksum};
  const bool admitted = Flash::admits(record);  // the quota may have become smaller meanwhile
  TenantSpace& tenant = *record.tenant;
  if (admitted && tenant.quota.flash_bytes != SpaceQuota::kUnlimited) flash_.usage.make_room(tenant, record.bytes());
  FlashPlace outdated;
  bool inserted = admitted && flash_.enter(record.key, entry, &outdated);
  while (admitted && !inserted && make_index_room_now(log)) inserted = flash_.enter(record.key, entry, &outdated);
  if (!inserted) {
    // Unfindable on flash: a tombstone keeps it from coming back at the next start after a removal.
    end_copies(record.key, place);
    return give_up(record, admitted ? not_written() : beyond_quota());
  }
  record.place = place;
  // Older copies must not outlive it.
  std::vector<ReplacedPlace> copies = flash_.take_strays(record.key.hash);
  if (outdated.generation != 0) copies.push_back({outdated.segment, outdated.generation});
  std::vector<Tombstone> elsewhere = flash_.replaced_by(record, place, copies);
  const bool unsure = record.replaces && flash_.something_unknown();
  if (unsure) flash_.note_unsure(record.key.hash);
  record.ends_elsewhere = unsure || std::ranges::any_of(elsewhere, [](const Tombstone& t) { return !t.outdates; });
  end_elsewhere(log, std::move(elsewhere));
  record.missed = false;
  uncount(record);
  pool_.clean(record);
  take_acks(record, {});
}

bool Demoter::make_index_room_now(DeviceLog& log) {
  return log.evictor.make_index_room_now() ||
         std::ranges::any_of(logs_, [](const auto& other) { return other->evictor.make_index_room_now(); });
}

// A record is on flash, and these older copies of it are on other devices: none of them may end before the record is
// durable. Until then they are strays. Behind a flush that fails a copy of the same record stays one; what was replaced
// must not come back, whatever has become of the record.
void Demoter::end_elsewhere(DeviceLog& log, std::vector<Tombstone> copies) {
  std::erase_if(copies, [this](const Tombstone& copy) {
    const bool noted = flash_.device_of(copy.segment).note_stray(copy);
    if (!noted) flash_.end(copy);
    return !noted;
  });
  if (copies.empty()) return;
  log.syncs.request([this, copies = std::move(copies)](const Status& flushed) {
    for (Tombstone copy : copies) {
      Strays& strays = flash_.device_of(copy.segment).strays;
      if ((!flushed && copy.outdates) || !strays.take(copy.key.hash, {copy.segment, copy.generation})) continue;
      copy.outdates = false;
      flash_.end(copy);
    }
    kick();
  });
}

// It may be on the medium at `place`, and is not known to be.
void Demoter::note_stray(const PoolRecord& record, const FlashPlace& place) {
  if (!flash_.device_of(place.segment).strays.add(record.key.hash, {place.segment, place.generation}))
    end_copies(record.key, place);
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
  if (!flash_.device_of(place.segment).health.on()) return write_elsewhere(record);
  record.put_seq = flash_.put_seq_next++;
  record.place = {};
  if (++record.write_failures > 1) return give_up(record, not_written());
  urgent_.push_front(record);
}

// The device that had it is off.
void Demoter::write_elsewhere(PoolRecord& record) {
  if (!flash_.on()) return give_up(record, tier_is_off());
  record.put_seq = flash_.put_seq_next++;
  record.place = {};
  record.missed = true;
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
  record.missed = record.missed || !flash_.on();
  flash_.bury_replaced(record);
  uncount(record);
  pool_.clean(record);
  take_acks(record, why);
}

// ---- A device that goes off and comes back ----

void Demoter::device_off(DeviceLog& log) {
  if (!flash_.on()) pump_.disarm();
  for (PoolRecord* record = nullptr; !flash_.on() && (record = next(Which::kAll)) != nullptr;) {
    dequeue(*record);
    give_up(*record, tier_is_off());
  }
  // The device may keep a frame for ever: the images stay with it, but nobody waits for it. It may also land.
  log.writer.visit_in_flight([this](const Frame& frame) {
    for (std::size_t i = 0; i < frame.records().size(); ++i) {
      PoolRecord& record = *frame.records()[i];
      if (record.frame != &frame) continue;
      record.frame = nullptr;
      if (record.state != PoolRecord::State::kDirty) continue;
      note_stray(record, frame.place(i));
      write_elsewhere(record);
    }
  });
  take_removals();
  log.syncs.give_up();
  kick();
}

void Demoter::device_back(DeviceLog& log) {
  log.catching_up = true;
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
  if (!Flash::admits(record) || over_budget(dirty_bytes_ + record.bytes())) return true;
  if (dirty_bytes_ > 0 && dirty_bytes_ + record.bytes() > pool_.bytes() / 4) return false;
  record.place = {};
  write_again(record);
  return true;
}

}  // namespace kvd::store
