#include "store/loader.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "block/checksum.h"

namespace kvd::store {
namespace {

std::uint32_t layers_per_read(const block::RecordShape& shape) {
  return std::max<std::uint32_t>(1, Loader::kReadBytes / shape.slab_stride);
}

// First layer of `set` at or after `from`; shape.layers when there is none.
std::uint32_t next_layer(const LayerSet& set, std::uint32_t from, std::uint32_t layers) {
  while (from < layers && !set[from]) ++from;
  return from;
}

}  // namespace

Loader::Loader(Flash& flash, Pool& pool, const DeviceLogs& logs, bool verify)
    : flash_(flash),
      pool_(pool),
      logs_(logs),
      verify_slabs_(verify),
      verify_(flash.loop, [this] { take_all_landed(); }),
      deliver_(flash.loop, [this] { deliver(); }),
      pump_(flash.loop, [this] { pump(); }) {
  landed_.reserve(logs.size() * kOpsMax * kPartsMax);
  taking_.reserve(logs.size() * kOpsMax * kPartsMax);
  while (free_waiters_.size() < pool_.reserved(kWaitersReserved)) add_waiter();
  while (lanes_.size() < logs.size()) {
    lanes_.push_back(std::make_unique<Lane>());
    for (Op& op : lanes_.back()->ops) {
      op.parts.reserve(kPartsMax);
      op.buffers.reserve(2 * kPartsMax);
      lanes_.back()->free_ops.push_back(&op);
    }
  }
}

// ---- Queueing and submitting ----

// Nothing of it is here yet.
void Loader::expect(PoolRecord& record, const FlashPlace& place) {
  record.place = place;
  pool_.begin_load(record);
  record.load->table_valid = record.shape->table_bytes == 0;
  if (record.load->table_valid) record.checksums = {&record.own_checksum, 1};
}

void Loader::begin(PoolRecord& record, const FlashPlace& place) {
  expect(record, place);
  pool_.publish(record, PoolRecord::State::kClean);
}

void Loader::pass(Get& get, PoolRecord& image, const FlashPlace& place) {
  expect(image, place);
  image.load->passing = true;
  wait(get, image);     // holds it
  pool_.detach(image);  // until the get has let go of it
}

void Loader::wait(Get& get, PoolRecord& record) {
  Waiter& waiter = new_waiter();
  waiter.get = &get;
  waiter.record = &record;
  waiter.how = {};
  get.internal = &waiter;
  record.load->waiters.push_back(waiter);
  pool_.hold(record);
  if (get.deadline != kNever) waiter.deadline.arm(get.deadline);
  want(record, get.layer_first, get.layer_count);
  pump_.arm(flash_.loop.now());
}

void Loader::want(PoolRecord& record, std::uint32_t first, std::uint32_t count) {
  PoolRecord::Load& load = *record.load;
  for (std::uint32_t layer = first; layer < first + count; ++layer)
    if (!load.valid[layer] && !load.pending[layer] && !load.landed[layer]) load.wanted.set(layer);
  if (!load.table_valid && !load.table_pending) load.table_wanted = true;
  enqueue(record);
}

// Into the queue it belongs to now.
void Loader::enqueue(PoolRecord& record) {
  const PoolRecord::Load& load = *record.load;
  const bool work = load.wanted.any() || load.table_wanted;
  const bool demanded = !load.waiters.empty();
  Lane& lane = lane_of(record);
  if (lane.demanded.holds(record) && !(work && demanded)) lane.demanded.erase(record);
  if (lane.promoted.holds(record) && !(work && !demanded)) lane.promoted.erase(record);
  if (!work) return;
  activate(record);
  auto& queue = demanded ? lane.demanded : lane.promoted;
  if (!queue.holds(record)) queue.push_back(record);
}

void Loader::activate(PoolRecord& record) {
  if (std::exchange(record.load->active, true)) return;
  pool_.hold(record);
  ++flash_.segments.at(record.place.segment).readers;
  flash_.segments.touch(record.place.segment);
}

// May free the record when it is detached: the last thing done with it.
void Loader::deactivate(PoolRecord& record) {
  if (!std::exchange(record.load->active, false)) return;
  const std::uint32_t segment = record.place.segment;
  KVD_CHECK(flash_.segments.at(segment).readers > 0);
  Segment& read = flash_.segments.at(segment);
  if (--read.readers == 0) logs_[read.device]->evictor.reader_gone(segment);
  pool_.release(record);
}

void Loader::pump() {
  for (const auto& lane : lanes_) pump(*lane);
}

void Loader::pump(Lane& lane) {
  while (!lane.free_ops.empty()) {
    auto& queue = lane.demanded.empty() ? lane.promoted : lane.demanded;
    PoolRecord* record = queue.pop_front();
    if (record == nullptr) return;
    Op& op = *lane.free_ops.back();
    lane.free_ops.pop_back();
    op.parts.clear();
    op.buffers.clear();
    Extent extent = next_extent(*record);
    op.op.offset = extent.begin;
    for (;;) {
      add_part(op, *record, extent);
      const std::uint64_t end = extent.begin + extent.bytes;
      record = queue.front();
      if (record == nullptr) break;
      extent = next_extent(*record);
      if (!joins(op, end, *record, extent)) break;
      if (extent.begin > end) op.buffers.push_back({op.gap.data(), extent.begin - end});
      queue.erase(*record);
    }
    for (const Part& part : op.parts)
      if (part.record->load->wanted.any()) queue.push_back(*part.record);
    submit(lane, op);
  }
}

// The table with the first layers when they are wanted together, as they lie together.
Loader::Extent Loader::next_extent(const PoolRecord& record) const {
  const PoolRecord::Load& load = *record.load;
  const block::RecordShape& shape = *record.shape;
  Extent extent;
  extent.table = load.table_wanted;
  extent.first = next_layer(load.wanted, 0, shape.layers);
  if (!extent.table || extent.first == 0) {
    const std::uint32_t limit = std::min(extent.first + layers_per_read(shape), shape.layers);
    while (extent.first + extent.count < limit && load.wanted[extent.first + extent.count]) ++extent.count;
  }
  const std::size_t begin = extent.table ? 0 : shape.slab_offset(extent.first);
  const std::size_t end = extent.count == 0 ? shape.table_bytes : shape.slab_offset(extent.first + extent.count);
  extent.begin = flash_.device_of(record.place.segment).offset_of(record.place.segment, record.place.offset) + begin;
  extent.bytes = end - begin;
  return extent;
}

LayerSet Loader::Extent::layers() const {
  LayerSet set;
  for (std::uint32_t layer = first; layer < first + count; ++layer) set.set(layer);
  return set;
}

bool Loader::failed(const PoolRecord& record, const Extent& extent) {
  const PoolRecord::Load& load = *record.load;
  return (extent.table && load.table_failed) || (load.failed.any() && (load.failed & extent.layers()).any());
}

// What is read for the second time is read alone: an error in one record must not count against another.
bool Loader::joins(const Op& op, std::uint64_t end, const PoolRecord& record, const Extent& extent) const {
  const Part& first = op.parts.front();
  return extent.begin >= end && extent.begin - end <= kGapBytes &&
         extent.begin + extent.bytes - op.op.offset <= kMergedBytes && op.parts.size() < kPartsMax &&
         record.place.segment == first.record->place.segment && !failed(record, extent) &&
         !failed(*first.record, first.extent);
}

void Loader::add_part(Op& op, PoolRecord& record, const Extent& extent) {
  PoolRecord::Load& load = *record.load;
  for (std::uint32_t layer = extent.first; layer < extent.first + extent.count; ++layer) {
    load.wanted.reset(layer);
    load.pending.set(layer);
  }
  if (extent.table) {
    load.table_wanted = false;
    load.table_pending = true;
  }
  op.buffers.push_back({extent.table ? record.image : record.slab(extent.first), extent.bytes});
  op.parts.push_back({&record, extent});
  pool_.hold(record);
}

void Loader::submit(Lane& lane, Op& op) {
  op.op.kind = io::DiskOp::Kind::kRead;
  op.op.buffers = op.buffers;
  op.op.on_done = [this, &lane, &op](Status status) { completed(lane, op, status); };
  flash_.device_of(op.parts.front().record->place.segment).submit(op.op);
}

// ---- Completion and verification ----

// Verification takes time that the device would wait for: first it gets its next operations, at the end of this turn of
// the loop, then what has landed is looked at.
void Loader::completed(Lane& lane, Op& op, const Status& status) {
  for (const Part& part : op.parts) landed_.push_back({part, status});
  lane.free_ops.push_back(&op);
  pump(lane);
  if (!verify_.armed()) verify_.arm(flash_.loop.now());
}

void Loader::take_all_landed() {
  taking_.swap(landed_);
  for (const Landed& landed : taking_) take(landed.part, landed.status);
  taking_.clear();
  start_promotions();
  pump();
  deliver();
}

void Loader::take(const Part& part, const Status& status) {
  PoolRecord& record = *part.record;
  PoolRecord::Load& load = *record.load;  // stays while anything is pending
  const LayerSet layers = part.extent.layers();
  load.pending &= ~layers;
  if (part.extent.table) load.table_pending = false;
  if (record.state == PoolRecord::State::kDetached && !load.passing) {
    if (!load.busy()) deactivate(record);
  } else {
    bool alive = true;
    if (!status) {
      alive = read_again(record, part.extent.table, layers, Code::kIo);
    } else {
      load.landed |= layers;
      alive = (!part.extent.table || take_table(record)) && take_landed(record);
    }
    if (alive) progress(record);
  }
  pool_.release(record);
}

bool Loader::take_table(PoolRecord& record) {
  PoolRecord::Load& load = *record.load;
  const auto table = block::decode_table(record.table_page(), record.seed, *record.shape);
  if (!table || static_cast<std::uint32_t>(table->checksum) != record.place.checksum)
    return read_again(record, true, {}, Code::kCorrupt);
  record.checksums = table->slabs;
  record.foreign = table->foreign;
  record.own_checksum = table->checksum;
  load.table_valid = true;
  load.table_failed = false;
  for (Waiter* waiter = load.waiters.front(); waiter != nullptr;) {
    Waiter* const next = List<Waiter, &Waiter::link>::after(*waiter);
    if (!std::ranges::equal(waiter->get->foreign, record.foreign))
      finish(*waiter, fail(Code::kNotFound, "another foreign key has this hash"));
    waiter = next;
  }
  return true;
}

// Verifies what has landed, as soon as there is something to verify it against.
bool Loader::take_landed(PoolRecord& record) {
  PoolRecord::Load& load = *record.load;
  if (!load.table_valid) return true;
  LayerSet bad;
  for (std::uint32_t layer = 0; layer < record.shape->layers; ++layer) {
    if (!load.landed[layer]) continue;
    load.landed.reset(layer);
    if (record.shape->table_bytes == 0) {
      record.own_checksum = block::slab_checksum(record.seed, layer, record.payload(layer));
      bad[layer] = verify_slabs_ && static_cast<std::uint32_t>(record.own_checksum) != record.place.checksum;
    } else {
      bad[layer] =
          verify_slabs_ && block::slab_checksum(record.seed, layer, record.payload(layer)) != record.checksums[layer];
    }
    load.valid[layer] = !bad[layer];
    if (!bad[layer]) load.failed.reset(layer);
  }
  return bad.none() || read_again(record, false, bad, Code::kCorrupt);
}

// Transient errors exist: once more. What fails again is dropped.
bool Loader::read_again(PoolRecord& record, bool table, const LayerSet& layers, Code code) {
  PoolRecord::Load& load = *record.load;
  if (!flash_.device_of(record.place.segment).health.on()) {  // it says nothing about the record
    abandon(record, tier_is_off());
    return false;
  }
  if ((load.failed & layers).none() && !(table && load.table_failed)) {
    load.failed |= layers;
    load.table_failed = load.table_failed || table;
    load.wanted |= layers;
    load.table_wanted = load.table_wanted || table;
    enqueue(record);
    return true;
  }
  const bool corrupt = code == Code::kCorrupt;
  if (corrupt) flash_.stats.corrupt.add();
  abandon(record, fail(code, corrupt ? "the record failed verification twice" : "the record could not be read twice"));
  drop_(record);
  return false;
}

// Ends the gets that have what they want, and the load when everything is there or nothing more is to come.
void Loader::progress(PoolRecord& record) {
  PoolRecord::Load& load = *record.load;
  for (Waiter* waiter = load.waiters.front(); waiter != nullptr;) {
    Waiter* const next = List<Waiter, &Waiter::link>::after(*waiter);
    if (record.has(waiter->get->layer_first, waiter->get->layer_count)) finish(*waiter, {});
    waiter = next;
  }
  settle(record);
}

void Loader::settle(PoolRecord& record) {
  PoolRecord::Load& load = *record.load;
  // A segment that is given up is not used again before its readers have gone: no promotion may keep it.
  if (!flash_.segments.holds(record.place.segment, record.place.generation)) end_promotion(record);
  if (load.waiters.empty() && !load.whole) {  // nobody wants it any more
    load.wanted.reset();
    load.table_wanted = false;
    if (!load.table_pending) load.landed.reset();  // there will be nothing to verify it against
  }
  enqueue(record);
  if (load.busy()) return;
  const bool complete = record.has(0, record.shape->layers);
  if (complete) end_promotion(record);
  deactivate(record);
  if (!complete) return;
  KVD_CHECK(load.waiters.empty());
  pool_.end_load(record);
}

// ---- Gets ----

void Loader::add_waiter() {
  all_waiters_.push_back(std::make_unique<Waiter>(flash_.loop, [this](Waiter& waiter) { deadline_passed(waiter); }));
  free_waiters_.reserve(all_waiters_.capacity());
  free_waiters_.push_back(all_waiters_.back().get());
}

Waiter& Loader::new_waiter() {
  ++waiters_;
  if (free_waiters_.empty()) add_waiter();
  Waiter& waiter = *free_waiters_.back();
  free_waiters_.pop_back();
  return waiter;
}

// The record stays held until the get is told.
void Loader::finish(Waiter& waiter, const Status& how) {
  waiter.deadline.disarm();
  waiter.record->load->waiters.erase(waiter);
  waiter.how = how;
  finished_.push_back(waiter);
  if (!deliver_.armed()) deliver_.arm(flash_.loop.now());
}

void Loader::deadline_passed(Waiter& waiter) {
  PoolRecord& record = *waiter.record;
  finish(waiter, fail(Code::kTimeout, "the get's deadline passed"));
  settle(record);
  deliver();
}

void Loader::cancel(Get& get) {
  auto* waiter = static_cast<Waiter*>(get.internal);
  if (waiter == nullptr) return;
  if (!finished_.holds(*waiter)) {
    PoolRecord& record = *waiter->record;
    finish(*waiter, {});
    settle(record);
  }
  waiter->how = fail(Code::kCancelled, "cancelled");
  finished_.erase(*waiter);
  tell(*waiter);
}

void Loader::deliver() {
  deliver_.disarm();
  while (Waiter* waiter = finished_.pop_front()) tell(*waiter);
}

void Loader::tell(Waiter& waiter) {
  Get& get = *waiter.get;
  PoolRecord& record = *waiter.record;
  get.internal = nullptr;
  waiter.get = nullptr;
  Result<RecordView> result = fail(Code::kCancelled, "");
  if (waiter.how) {
    flash_.stats.flash_hits.add();
    flash_.stats.bytes_got.add(std::uint64_t{get.layer_count} * record.shape->slab_bytes);
    result = view_of(record, get.layer_first, get.layer_count);
  } else {
    flash_.stats.misses.add();
    result = fail(waiter.how.error());
  }
  --waiters_;
  free_waiters_.push_back(&waiter);
  pool_.release(record);
  auto on_done = std::move(get.on_done);
  on_done(std::move(result));
}

// What is in flight lands in a buffer that nobody reads any more; record and segment wait for it all the same.
void Loader::abandon(PoolRecord& record, const Status& why) {
  if (record.load == nullptr) return;
  PoolRecord::Load& load = *record.load;
  while (Waiter* waiter = load.waiters.front()) finish(*waiter, why);
  end_promotion(record);
  load.landed.reset();
  settle(record);
}

void Loader::given_up(std::uint32_t segment) {
  if (flash_.segments.at(segment).readers == 0) return;
  auto& promoted = lanes_[flash_.segments.at(segment).device]->promoted;
  for (PoolRecord* record = promoted.front(); record != nullptr;) {
    PoolRecord* const next = List<PoolRecord, &PoolRecord::load_link>::after(*record);
    if (record->place.segment == segment) settle(*record);
    record = next;
  }
  if (!verify_.armed()) verify_.arm(flash_.loop.now());  // there is room for other promotions
}

void Loader::abandon_all(const Status& why) {
  abandon_those(why, nullptr);
  deliver();
}

void Loader::abandon_all_of(const FlashDevice& device) { abandon_those(tier_is_off(), &device); }

void Loader::abandon_those(const Status& why, const FlashDevice* device) {
  if (!flash_.on() || device == nullptr) promotions_queued_ = 0;
  for (const auto& waiter : all_waiters_) {
    if (waiter->get == nullptr || finished_.holds(*waiter)) continue;
    PoolRecord& record = *waiter->record;
    if (device != nullptr && &flash_.device_of(record.place.segment) != device) continue;
    finish(*waiter, why);
    settle(record);
  }
}

// ---- Promotions ----

void Loader::promote(const RecordKey& key) {
  if (promotions_queued_ < kPromotionsQueuedMax)
    promotions_[(promotion_next_ + promotions_queued_++) % kPromotionsQueuedMax] = key;
  start_promotions();
  pump_.arm(flash_.loop.now());
}

void Loader::start_promotions() {
  const std::uint64_t bytes_max = std::min(pool_.bytes() / 4, kPromotionBytesMax);
  while (promotions_queued_ > 0 && promoting_bytes_ < bytes_max) {
    const RecordKey key = promotions_[promotion_next_++ % kPromotionsQueuedMax];
    --promotions_queued_;
    PoolRecord* record = start_promotion_(key);
    if (record == nullptr || record->load == nullptr || record->load->whole) continue;
    record->load->whole = true;
    promoting_bytes_ += record->bytes();
    want(*record, 0, record->shape->layers);
  }
}

void Loader::end_promotion(PoolRecord& record) {
  if (std::exchange(record.load->whole, false)) promoting_bytes_ -= record.bytes();
}

}  // namespace kvd::store
