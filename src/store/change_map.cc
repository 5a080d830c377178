#include "store/change_map.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

namespace kvd::store {

ChangeMap::ChangeMap(Flash& flash, FlashDevice& device, SyncQueue& syncs, bool on)
    : flash_(flash), device_(device), syncs_(syncs) {
  const std::uint32_t segments = device_.segments.count();
  if (!on || use_table_bytes(segments) > kUseTableBytesMax) return;
  for (SegmentBits* bits : {&unsettled_, &changed_, &on_flash_, &in_map_, &since_})
    bits->resize(segment_words(segments));
  for (auto* list : {&waiting_, &in_write_, &telling_}) list->reserve(kWaitingReserved);
  uses_.reserve(segments);
  map_area_ = AlignedBuffer(change_map_bytes(segments));
  table_area_ = AlignedBuffer(use_table_bytes(segments));
}

// A store that is being made smaller gets its table with the next opening.
bool ChangeMap::possible() const noexcept {
  return table_area_.size() > 0 && !device_.unlisted && device_.volume.segments() == device_.segments.count() &&
         device_.volume.segments_wanted() == device_.segments.count();
}

bool ChangeMap::much_changed() const noexcept {
  const std::uint32_t max = std::clamp(device_.segments.count() / 16, kChangedMin, kChangedMax);
  const auto bits = std::transform_reduce(changed_.begin(), changed_.end(), 0u, std::plus(), [](std::uint64_t word) {
    return static_cast<unsigned>(std::popcount(word));
  });
  return bits > max;
}

void ChangeMap::mark(std::uint32_t segment, Done done) {
  if (state_ == State::kNew && !possible()) state_ = State::kNone;
  if (state_ == State::kNone) return done({});
  const std::uint32_t at = device_.local(segment);
  set_bit(unsettled_, at);
  if (table_runs_ || table_is_new_) set_bit(since_, at);
  const bool there = has_bit(changed_, at) && has_bit(on_flash_, at);
  set_bit(changed_, at);
  if (!there) waiting_.push_back(std::move(done));
  map_due_ = map_due_ || !map_follows_;
  table_due_ = true;
  go_on();
  if (there) done({});
}

void ChangeMap::settled(std::uint32_t segment) noexcept {
  if (!unsettled_.empty()) clear_bit(unsettled_, device_.local(segment));
}

void ChangeMap::go_on() {
  if (!map_runs_ && table_is_new_) begin_anew();
  if (!map_runs_ && (map_due_ || !waiting_.empty())) write_map();
  if (table_due_ && state_ == State::kOn && !table_runs_ && !table_is_new_ && !voiding_ &&
      flash_.loop.now() >= table_from_ && (serial_ == 0 || (map_follows_ && much_changed())))
    write_table();
}

// ---- The map ----

void ChangeMap::write_map() {
  map_runs_ = true;
  map_due_ = false;
  in_map_ = changed_;
  in_write_.swap(waiting_);
  encode_change_map(map_area_.span(), device_.volume.seeds(), device_.volume.boot_epoch(), serial_,
                    device_.segments.count(), in_map_);
  map_buffer_ = {map_area_.data(), map_area_.size()};
  map_op_.kind = io::DiskOp::Kind::kWrite;
  map_op_.offset = kChangeMapAt;
  map_op_.buffers = {&map_buffer_, 1};
  map_op_.on_done = [this](Status written) {
    if (!written) return map_failed(written);
    syncs_.request([this](Status synced) { map_written(std::move(synced)); });
  };
  device_.submit(map_op_);
}

void ChangeMap::map_written(Status status) {
  map_runs_ = false;
  if (status) {
    on_flash_ = in_map_;
    map_follows_ = !table_is_new_;
    if (state_ == State::kNew) state_ = State::kOn;
  } else if (state_ == State::kNew) {
    return go_without();  // no table was written, so none will be believed
  } else {                // it may have reached the medium or not: only what both say is there
    for (std::size_t i = 0; i < on_flash_.size(); ++i) on_flash_[i] &= in_map_[i];
  }
  telling_.swap(in_write_);
  if (state_ == State::kOn) go_on();
  tell(status);
}

void ChangeMap::tell(const Status& status) {
  for (Done& done : telling_) done(status);
  telling_.clear();
}

// Nothing is marked any more before the table is void. What waits meanwhile is told then.
void ChangeMap::map_failed(const Status& why) {
  if (state_ == State::kNew || !device_.health.on()) return map_written(why);
  voiding_ = true;
  if (!table_runs_) void_table();
}

void ChangeMap::go_without() {
  state_ = State::kNone;
  map_runs_ = false;
  for (auto* list : {&in_write_, &waiting_}) {
    for (Done& done : *list) telling_.push_back(std::move(done));
    list->clear();
  }
  tell({});
}

// ---- The table ----

void ChangeMap::write_table() {
  table_runs_ = true;
  table_due_ = false;
  since_ = unsettled_;
  list_uses(flash_, device_, uses_);
  encode_use_table(table_area_.span(), device_.volume.seeds(), device_.volume.boot_epoch(), uses_, serial_ + 1);
  write_table_area(table_area_.size());
}

void ChangeMap::write_table_area(std::size_t bytes) {
  table_buffer_ = {table_area_.data(), bytes};
  table_op_.kind = io::DiskOp::Kind::kWrite;
  table_op_.offset = kUseTableAt;
  table_op_.buffers = {&table_buffer_, 1};
  table_op_.on_done = [this](const Status& written) {
    if (!written) return table_written(written);
    syncs_.request([this](const Status& synced) { table_written(synced); });
  };
  device_.submit(table_op_);
}

void ChangeMap::table_written(const Status& written) {
  table_runs_ = false;
  if (std::exchange(table_voids_, false)) return table_void(written);
  table_is_new_ = written.has_value();
  pause_ = written ? Duration::zero() : std::clamp<Duration>(2 * pause_, kPauseFirst, kPauseMax);
  table_from_ = after(flash_.loop.now(), pause_);
  if (voiding_) return void_table();
  go_on();
}

void ChangeMap::void_table() {
  table_runs_ = table_voids_ = true;
  std::ranges::fill(table_area_.first(kPageBytes), std::byte{});
  write_table_area(kPageBytes);
}

void ChangeMap::table_void(const Status& status) {
  voiding_ = false;
  if (!status) return map_written(status);
  flash_.log.warn("store: the map of changes cannot be written: the next start reads all headers");
  go_without();
}

// The table on flash is the next one: what it tells needs no bit any more.
void ChangeMap::begin_anew() {
  table_is_new_ = map_follows_ = false;
  ++serial_;
  changed_ = since_;
  map_due_ = true;
}

}  // namespace kvd::store
