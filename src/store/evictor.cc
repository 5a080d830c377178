#include "store/evictor.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error_text.h"
#include "block/key.h"

namespace kvd::store {

Evictor::Evictor(Flash& flash, FlashDevice& device, SyncQueue& syncs, ChangeMap& changes)
    : flash_(flash),
      device_(device),
      syncs_(syncs),
      changes_(changes),
      discards_(device.volume.disk().discards()),
      sweep_(flash.loop, [this] { sweep(); }),
      retry_(flash.loop, [this] { retry_all(); }) {}

void Evictor::reserve() {
  for (auto* list : {&tasks_, &spare_}) list->reserve(kTasksReserved);
  while (spare_.size() < kTasksReserved) {
    add_spare();
    if (spare_.size() > kTasksReserved - kTasksMax) spare_.back()->content.reserve(flash_.records_per_segment());
  }
  footer_area_.grow(std::max(footer_tail(), footer_bytes(1, 1, flash_.records_per_segment())));
  footer_.content.reserve(flash_.records_per_segment());
  footer_.usage.reserve(footer_.content.namespaces.capacity());
  hashes_.reserve(footer_.content.namespaces.capacity());
}

// What is read first: most footers are not longer.
std::size_t Evictor::footer_tail() const noexcept {
  return std::min<std::size_t>(kDescriptorAreaMax, flash_.segment_bytes());
}

void Evictor::add_spare() {
  spare_.push_back(std::make_unique<Task>());
  spare_.back()->header = AlignedBuffer(kPageBytes);
}

// While the device is off what it holds is left alone: it is the next opening's.
void Evictor::maintain() {
  if (device_.health.on()) prepare_free();
  if (device_.health.on()) give_up_some();
  flash_.update_gauges();
}

void Evictor::give_up_some() {
  if (const auto overfull = device_.tombstones.overfull();
      overfull && flash_.segments.at(*overfull).state == SegmentState::kSealed && tasks_.size() < kTasksMax)
    evict(*overfull);
  give_up_spent();
  while (!surplus_.empty() && tasks_.size() < kTasksMax) {
    const ReplacedPlace use = surplus_.back();
    surplus_.pop_back();
    const Segment& segment = flash_.segments.at(use.segment);
    if (segment.state == SegmentState::kSealed && segment.generation == use.generation) evict(use.segment);
  }
  const auto unblocked = [this] {
    return static_cast<std::uint32_t>(std::ranges::count_if(tasks_, [this](const auto& task) {
      const bool held_up = task->step == Task::Step::kTombstones && flash_.tells_others(task->segment) &&
                           flash_.loop.now() >= after(task->cleaned_at, kOthersWait);
      return task->step != Task::Step::kReaders && !held_up && task->becomes != SegmentState::kRetired;
    }));
  };
  while (tasks_.size() < kTasksMax && device_.segments.ready_count() + unblocked() < kReadyWanted)
    if (!give_up_one()) break;
  if (stuck()) free_one();
}

// Not what a later start may still be able to read, and it leaves places for what has to be given up.
void Evictor::give_up_spent() {
  while (too_many_tombstones_ && tasks_.size() + kReadyWanted < kTasksMax &&
         (flash_.doubts_end || !flash_.in_doubt())) {
    const auto spent = device_.tombstones.most_spent(flash_.tombstones_spent_max);
    too_many_tombstones_ = spent.has_value();
    if (!spent) return;
    if (!std::exchange(told_spent_, true))
      flash_.log.info(
          fmt::format("store: of the removals on flash nothing needs more than {} any more: segments that hold most of "
                      "these are given up, as a start keeps all in memory",
                      flash_.tombstones_spent_max));
    evict(*spent);
  }
}

void Evictor::give_up(std::uint32_t segment) { surplus_.push_back({segment, flash_.segments.at(segment).generation}); }

void Evictor::resume() {
  failures_ = 0;
  for (const auto& task : tasks_) task->failures = 0;
  for (std::uint32_t s = device_.segments.first(); s < device_.segments.end(); ++s)
    if (flash_.segments.at(s).doomed) give_up(s);
  retry_all();
  tombstones_durable();  // what has come so far while the device was off
  maintain();
}

void Evictor::changed() {
  maintain();
  if (on_progress_) on_progress_();
}

// Free segments come before all that is given up, and beside it: tombstones may have nowhere else to be carried to.
void Evictor::prepare_free() {
  const auto preparing = [this] {
    return static_cast<std::uint32_t>(std::ranges::count_if(
        tasks_, [](const auto& task) { return !task->evicts && task->becomes == SegmentState::kReady; }));
  };
  while (device_.health.on() && device_.segments.ready_count() + preparing() < kReadyWanted) {
    auto free = device_.segments.start_preparing(SegmentState::kFree);
    const bool doubtful = !free;
    if (doubtful) free = device_.segments.start_preparing(SegmentState::kDoubtful);
    if (!free) return;
    flash_.doubts_end = flash_.doubts_end || doubtful;  // it may have held what is newer than something in the others
    Task& task = add_task(*free, false);
    task.doubtful = doubtful;
    prepare(task);
  }
}

void Evictor::end_doubts() {
  if (!flash_.doubts_end || !device_.in_doubt() || !device_.health.on()) return;
  end_half_known();
  auto ending = std::ranges::count(tasks_, SegmentState::kFree, [](const auto& task) { return task->becomes; });
  for (; ending < static_cast<std::ptrdiff_t>(kTasksMax); ++ending) {
    const auto segment = device_.segments.start_preparing(SegmentState::kDoubtful);
    if (!segment) return;
    Task& task = add_task(*segment, false);
    task.doubtful = true;
    task.becomes = SegmentState::kFree;
    prepare(task);
  }
}

// A few at a time, but what was begun first always, whatever else is under way: all others wait for it.
void Evictor::end_half_known() {
  auto ending = std::ranges::count(tasks_, true, &Task::half_known);
  for (auto next = half_known_sealed(); next; next = half_known_sealed()) {
    if (ending++ >= static_cast<std::ptrdiff_t>(kTasksMax) && *next != device_.half_known.front()) return;
    evict(*next);
  }
}

std::optional<std::uint32_t> Evictor::half_known_sealed() const {
  const auto next = std::ranges::find_if(
      device_.half_known, [this](auto s) { return flash_.segments.at(s).state == SegmentState::kSealed; });
  return next == device_.half_known.end() ? std::nullopt : std::optional(*next);
}

// Whether tombstones have to be carried here, for this device or another, and there is nowhere to carry them, nor will
// be: all that is being given up waits. A crash while the last ready segment took such copies leaves that. Recovery
// sees to it that some segment has none to carry.
bool Evictor::stuck() const {
  const DeviceSegments& segments = device_.segments;
  const bool nowhere = segments.ready_count() == 0 && segments.count_in(SegmentState::kOpen) == 0 &&
                       segments.count_in(SegmentState::kSealing) == 0;
  return nowhere && device_.tombstones.carrying() && !flash_.headers_in_doubt() &&
         std::ranges::all_of(tasks_, [](const auto& task) { return task->step == Task::Step::kTombstones; });
}

// What was begun first of all that tells of nothing else, here or elsewhere: it does not even wait for what is half
// known, on its device or on others, which may wait for it.
void Evictor::free_one() {
  std::optional<std::uint32_t> first;
  const auto generation = [this](std::uint32_t s) { return flash_.segments.at(s).generation; };
  const auto consider = [&](std::uint32_t segment) {
    if (!first || generation(segment) < generation(*first)) first = segment;
  };
  for (const auto& task : tasks_)
    if (!has_to_keep(*task)) consider(task->segment);
  const std::vector<bool> holds_for_others = device_.tombstones.holders_for_others();
  for (std::uint32_t s = device_.segments.first(); s < device_.segments.end(); ++s)
    if (flash_.segments.at(s).state == SegmentState::kSealed && !flash_.tells_others(s) &&
        !holds_for_others[device_.local(s)])
      consider(s);
  if (!first) return;
  if (flash_.segments.at(*first).state == SegmentState::kSealed) evict(*first);
  Task& task = **std::ranges::find(tasks_, *first, &Task::segment);
  task.goes_first = true;
  if (task.step == Task::Step::kTombstones) go_on(task);
}

// What is half known goes before all else: that would have to wait for it.
bool Evictor::give_up_one() {
  if (const auto next = half_known_sealed()) return evict(*next), true;
  const auto victim = device_.segments.start_eviction(true);
  if (victim) begin(*victim);
  return victim.has_value();
}

// The index may know nothing of what is half known, so that comes only where there is nothing else.
void Evictor::make_index_room() {
  if (may_begin_for_index()) begin(*device_.segments.start_eviction(false));
  if (device_.health.on() && !device_.segments.has_victim()) end_half_known();
}

// Nothing more can be begun, and what is under way has left the index. (What is half known may not be there at all, and
// what cannot be overwritten may never be.)
bool Evictor::index_room_waits() const {
  const auto comes = [](const auto& task) {
    return !task->half_known && !task->swept && (task->step == Task::Step::kFooter || task->step == Task::Step::kSweep);
  };
  const auto ends = [](const auto& task) { return task->evicts && task->step != Task::Step::kRetry; };
  return std::ranges::any_of(tasks_, ends) && !may_begin_for_index() && std::ranges::none_of(tasks_, comes);
}

bool Evictor::may_begin_for_index() const {
  const auto going = std::ranges::count_if(tasks_, [](const auto& task) { return task->evicts && !task->half_known; });
  return device_.health.on() && going < static_cast<std::ptrdiff_t>(kTasksMax) && device_.segments.has_victim();
}

bool Evictor::make_index_room_now() {
  for (std::size_t i = 0;; ++i) {
    if (i == tasks_.size()) make_index_room();
    if (i == tasks_.size()) return false;
    Task& task = *tasks_[i];
    if (task.evicts && !std::exchange(task.swept, true) && erase_some(task, 0, flash_.index.buckets()) > 0) return true;
  }
}

void Evictor::evict(std::uint32_t segment, bool retire) {
  device_.segments.start_eviction_of(segment);
  Task& task = begin(segment);
  if (retire) task.becomes = SegmentState::kRetired;
}

// Of a segment that is kEvicting since just now.
Evictor::Task& Evictor::begin(std::uint32_t segment) {
  flash_.stats.segments_evicted.add();
  flash_.usage.forget(segment);
  Task& task = add_task(segment, true, flash_.half_known(segment));
  read_footer(task, footer_tail());
  if (on_give_up_) on_give_up_(segment);
  return task;
}

std::vector<std::uint32_t> Evictor::removed_from(std::uint64_t hash) {
  std::vector<std::uint32_t> segments;
  for (const auto& task : tasks_) {
    if (!task->evicts || task->half_known) continue;  // removals wait for the end of these
    if (task->content_known && !std::ranges::binary_search(task->content, hash)) continue;
    if (task->removed.contains(hash)) continue;
    if (!task->content_known && task->removed.size() >= flash_.segment_pages()) {
      device_.tombstones.await_end(task->segment, flash_.put_seq_next++);
      continue;
    }
    task->removed.insert(hash);
    segments.push_back(task->segment);
  }
  return segments;
}

Evictor::Task& Evictor::add_task(std::uint32_t segment, bool evicts, bool half_known) {
  if (spare_.empty()) add_spare();
  // A free segment has no content to remember, nor has one that is half known: those with the memory for it are last.
  const auto spare = evicts && !half_known ? std::prev(spare_.end()) : spare_.begin();
  tasks_.push_back(std::move(*spare));
  spare_.erase(spare);
  Task& task = *tasks_.back();
  task.segment = segment;
  task.evicts = evicts;
  task.half_known = half_known;
  task.content_known = task.swept = task.doubtful = task.goes_first = false;
  task.becomes = SegmentState::kReady;
  task.content.clear();
  task.removed.clear();
  task.failures = 0;
  return task;
}

void Evictor::submit(Task& task, io::DiskOp::Kind kind, std::uint64_t offset, MutableBytes buffer,
                     std::move_only_function<void(Status)> on_done) {
  task.io = {buffer.data(), buffer.size()};
  task.op.kind = kind;
  task.op.offset = offset;
  task.op.buffers = {&task.io, 1};
  task.op.on_done = std::move(on_done);
  device_.submit(task.op);
}

// ---- (2) index entries ----

void Evictor::read_footer(Task& task, std::size_t bytes) {
  task.step = Task::Step::kFooter;
  if (footer_reader_ == nullptr) footer_reader_ = &task;
  if (footer_reader_ != &task) return;  // one after the other: they share the memory
  footer_area_.grow(bytes);
  const std::uint64_t offset = device_.offset_of(task.segment) + flash_.segment_bytes() - bytes;
  submit(task, io::DiskOp::Kind::kRead, offset, footer_area_.first(bytes),
         [this, &task](const Status& status) { footer_read(task, status); });
}

void Evictor::footer_read(Task& task, const Status& status) {
  const Segment& segment = flash_.segments.at(task.segment);
  const Bytes area = footer_area_.first(task.io.iov_len);
  const auto trailer = status
                           ? peek_footer(area, device_.local(task.segment), segment.generation, flash_.segment_bytes())
                           : Result<FooterTrailer>(fail(status.error()));
  if (trailer && trailer->footer_bytes > area.size()) return read_footer(task, trailer->footer_bytes);
  const bool listed =
      trailer && parse_footer(area.last(trailer->footer_bytes), device_.volume.seeds(), *trailer, footer_);
  if (listed) erase_by(task, footer_);
  task.step = Task::Step::kSweep;
  task.sweep_at = 0;
  read_next_footer();
  if (listed) return index_clean(task);
  flash_.index.begin_sweep(task.segment);
  if (!sweep_.armed()) sweep_.arm(flash_.loop.now());
}

void Evictor::read_next_footer() {
  footer_reader_ = nullptr;
  if (footer_area_.size() > kBufferKeptMax) footer_area_ = AlignedBuffer();
  const auto next = std::ranges::find_if(tasks_, [](const auto& task) { return task->step == Task::Step::kFooter; });
  if (next != tasks_.end()) read_footer(**next, footer_tail());
}

void Evictor::erase_by(Task& task, const Footer& footer) {
  const SegmentContent& content = footer.content;
  hashes_.clear();
  for (const auto& name : content.namespaces)
    hashes_.push_back(block::hash_namespace(name.tenant, as_bytes(name.fingerprint)));
  for (const Descriptor& d : content.descriptors) {
    if (d.tombstone() || !servable(d, content, footer.trailer.data_pages)) continue;
    const block::RecordId id{d.key(), d.shard, content.schemas[d.schema].group};
    const std::uint64_t hash = record_hash(hashes_[d.name_space], id);
    if (!task.half_known) task.content.push_back(hash);
    const bool known = flash_.index.erase(hash, task.segment, d.offset) > 0;
    device_.stats.records.sub(known ? 1 : 0);
  }
  std::ranges::sort(task.content);
  task.content_known = true;
}

std::uint64_t Evictor::erase_some(const Task& task, std::uint64_t from, std::uint64_t buckets) {
  const std::uint64_t erased = flash_.index.erase_segment(task.segment, from, buckets);
  device_.stats.records.sub(erased);
  return erased;
}

void Evictor::sweep() {
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    Task& task = *tasks_[i];
    if (task.step != Task::Step::kSweep) continue;
    erase_some(task, task.sweep_at, flash_.sweep_buckets);
    task.sweep_at += flash_.sweep_buckets;
    if (task.sweep_at >= flash_.index.buckets()) {
      device_.stats.records.sub(flash_.index.end_sweep(task.segment));
      index_clean(task);
    } else {
      sweep_.arm(flash_.loop.now());
    }
  }
}

// ---- (3) tombstones, (4) readers ----

void Evictor::index_clean(Task& task) {
  flash_.update_gauges();
  task.cleaned_at = flash_.loop.now();
  device_.tombstones.carry_from(task.segment);
  for (const auto& device : flash_.devices) device->tombstones.hurry(task.segment);
  flash_.doubts_end = true;
  if (on_progress_) on_progress_();
  go_on(task);
}

void Evictor::tombstones_durable() {
  for (std::size_t i = 0; i < tasks_.size(); ++i)
    if (tasks_[i]->step == Task::Step::kTombstones) go_on(*tasks_[i]);
}

// Tombstones of which only it tells are not durable elsewhere.
bool Evictor::has_to_keep(const Task& task) const {
  return device_.tombstones.carried(task.segment) > 0 || flash_.tells_others(task.segment);
}

// Whether something that is half known has to go before it: all there is or, where it is so itself, what was begun
// before it. (Of two that were begun at once the higher generation may have been used first.)
bool Evictor::is_behind_half_known(const Task& task) const {
  const auto first = flash_.first_half_known();
  if (task.goes_first || !first) return false;
  return !task.half_known || flash_.segments.at(*first).generation < flash_.segments.at(task.segment).generation;
}

// What must not be overwritten yet.
bool Evictor::has_to_wait(const Task& task) const {
  return flash_.headers_in_doubt() || is_behind_half_known(task) || has_to_keep(task);
}

// Others may have to go for it: see stuck().
void Evictor::hold(Task& task) {
  task.goes_first = task.goes_first && !has_to_keep(task);
  if (std::exchange(task.step, Task::Step::kTombstones) != Task::Step::kTombstones && on_progress_) on_progress_();
}

// A device that is off is asked for nothing: see resume().
void Evictor::go_on(Task& task) {
  if (!device_.health.on() || has_to_wait(task)) return hold(task);
  if (flash_.segments.at(task.segment).readers == 0) return prepare(task);
  task.step = Task::Step::kReaders;
  maintain();
}

void Evictor::reader_gone(std::uint32_t segment) {
  for (std::size_t i = 0; i < tasks_.size(); ++i)
    if (tasks_[i]->segment == segment && tasks_[i]->step == Task::Step::kReaders) return go_on(*tasks_[i]);
}

// ---- (5) header ----

// A start behind a kill has to know that this header may be another than the table of uses says. What had waited has to
// wait again where a device has come back meanwhile, also since an earlier try.
void Evictor::prepare(Task& task) {
  task.step = Task::Step::kMark;
  changes_.mark(task.segment, [this, &task](const Status& marked) {
    if (!marked) return retry(task);
    if (task.evicts && has_to_wait(task)) return hold(task);
    write_header(task);
  });
}

void Evictor::write_header(Task& task) {
  task.step = Task::Step::kHeader;
  task.new_generation = flash_.generation_next++;
  SegmentHeader header;
  header.segment = device_.local(task.segment);
  header.uuid = device_.volume.superblock().uuid;
  header.generation = task.new_generation;
  header.boot_epoch = device_.volume.boot_epoch();
  header.segment_bytes = flash_.segment_bytes();
  flash_.segments.at(task.segment).next_generation = task.new_generation;
  task.unopened = flash_.segments.unopened(flash_.segments.at(task.segment).device);
  encode_segment_header(task.header.span(), device_.volume.seeds(), header, device_.segments.recent(kRecentMax),
                        task.unopened);
  submit(task, io::DiskOp::Kind::kWrite, device_.offset_of(task.segment), task.header.span(),
         [this, &task](Status status) {
           if (!status) return retry(task);
           syncs_.request([this, &task](Status synced) { synced ? header_durable(task) : retry(task); });
         });
}

// ---- (6) discard ----

void Evictor::header_durable(Task& task) {
  if (!discards_ || !task.evicts) return finish(task);
  task.step = Task::Step::kDiscard;
  task.discard_at = kPageBytes;  // the new header stays
  discard_next();
}

// The next piece of the first segment that has one to discard.
void Evictor::discard_next() {
  const auto next = std::ranges::find_if(tasks_, [](const auto& task) { return task->step == Task::Step::kDiscard; });
  if (discarding_ || next == tasks_.end()) return;
  Task& task = **next;
  discarding_ = true;
  task.op.kind = io::DiskOp::Kind::kDiscard;
  task.op.offset = device_.offset_of(task.segment) + task.discard_at;
  task.op.buffers = {};
  task.op.discard_bytes = std::min(kDiscardBytes, flash_.segment_bytes() - task.discard_at);
  task.op.on_done = [this, &task](Status status) { discarded(task, status); };
  device_.submit(task.op);
}

void Evictor::discarded(Task& task, const Status& status) {
  discarding_ = false;
  task.discard_at += task.op.discard_bytes;
  if (status) {
    flash_.stats.flash_bytes_discarded.add(task.op.discard_bytes);
    device_.stats.bytes_discarded.add(task.op.discard_bytes);
  }
  const bool on = device_.health.on();  // otherwise the rest is not worth waiting for
  if (!status && on && std::exchange(discards_, false))
    flash_.log.warn(
        fmt::format("store: the device discards nothing until the next start: {}", error_text(status.error())));
  if (on && discards_ && task.discard_at < flash_.segment_bytes()) return discard_next();
  finish(task);
  if (discards_) return discard_next();
  const auto waits = [](const auto& other) { return other->step == Task::Step::kDiscard; };
  for (;;) {
    const auto next = std::ranges::find_if(tasks_, waits);
    if (next == tasks_.end()) return;
    finish(**next);
  }
}

void Evictor::finish(Task& task) {
  failures_ = 0;
  device_.tombstones.forget(task.segment);
  too_many_tombstones_ = !ending_;  // those that named it are spent
  device_.strays.forget(task.segment);
  flash_.release_namespaces(task.segment);
  if (std::exchange(task.doubtful, false)) --device_.doubtful;
  if (task.half_known) std::erase(device_.half_known, task.segment);
  if (task.becomes == SegmentState::kReady) {
    device_.segments.ready(task.segment, task.new_generation, task.unopened);
  } else {
    Segment& segment = flash_.segments.at(task.segment);
    segment.generation = task.new_generation;
    segment.unopened = task.unopened;
    segment.next_generation = 0;
    flash_.segments.change(task.segment, task.becomes);
  }
  changes_.settled(task.segment);
  const auto at = std::ranges::find_if(tasks_, [&](const auto& other) { return other.get() == &task; });
  spare_.insert(task.evicts && !task.half_known ? spare_.end() : spare_.begin(), std::move(*at));
  tasks_.erase(at);
  tombstones_durable();  // others may have carried tombstones of this segment, which nothing needs any more
  changed();
}

// The segment stays given up. Its header may or may not be the new one, so it counts as living until a write succeeds.
void Evictor::retry(Task& task) {
  task.step = Task::Step::kRetry;
  flash_.segments.at(task.segment).next_generation = 0;  // it will have another one
  if (!device_.health.on()) return;                      // see resume()
  flash_.log.warn(fmt::format("store: segment {} could not be prepared; trying again", task.segment));
  const bool waited_for = device_.tombstones.awaits_end(task.segment) ||
                          ((task.doubtful || task.half_known) && flash_.doubts_end);  // nobody's removal may hang on it
  ++task.failures;
  if (!retry_.armed()) ++failures_;  // once for all that fail until the next try
  if (failures_ >= kFailuresMax || (waited_for && task.failures >= kFailuresMax))
    return device_.health.turn_off("no segment can be prepared");
  if (!retry_.armed()) retry_.arm_in(kRetryDelay);
}

void Evictor::retry_all() {
  if (!device_.health.on()) return;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    Task& task = *tasks_[i];
    if (task.step == Task::Step::kRetry) prepare(task);
  }
}

}  // namespace kvd::store
