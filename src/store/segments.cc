#include "store/segments.h"

#include <algorithm>

#include "base/check.h"

namespace kvd::store {

bool Segments::readable(std::uint32_t segment) const noexcept {
  if (segment >= segments_.size()) return false;
  const SegmentState state = segments_[segment].state;
  return state == SegmentState::kOpen || state == SegmentState::kSealing || state == SegmentState::kSealed ||
         state == SegmentState::kRecovered;
}

void Segments::seal(std::uint32_t segment, bool next_victim) {
  segments_[segment].state = SegmentState::kSealed;
  policy_->add(segment);
  if (next_victim) policy_->demote(segment);
}

std::optional<std::uint32_t> Segments::start_eviction(bool avoid_readers) {
  std::optional<std::uint32_t> victim;
  if (avoid_readers) victim = first_victim([&](std::uint32_t s) { return segments_[s].readers == 0; });
  if (!victim) victim = policy_->victim();
  if (victim) start_eviction_of(*victim);
  return victim;
}

std::optional<std::uint32_t> Segments::first_victim(const std::function<bool(std::uint32_t)>& is) const {
  auto victim = policy_->victim();
  while (victim && !is(*victim)) victim = policy_->next_victim(*victim);
  return victim;
}

void Segments::start_eviction_of(std::uint32_t segment) {
  KVD_CHECK(segments_[segment].state == SegmentState::kSealed);
  policy_->remove(segment);
  segments_[segment].state = SegmentState::kEvicting;
}

std::optional<std::uint32_t> Segments::start_preparing() {
  const auto free = std::ranges::find(segments_, SegmentState::kFree, &Segment::state);
  if (free == segments_.end()) return std::nullopt;
  free->state = SegmentState::kPreparing;
  return static_cast<std::uint32_t>(free - segments_.begin());
}

void Segments::retire_from(std::uint32_t first, std::optional<std::uint32_t> lent) {
  for (std::uint32_t i = first; i < count(); ++i)
    if (segments_[i].state == SegmentState::kFree && i != lent) segments_[i].state = SegmentState::kRetired;
}

void Segments::retire_ready(std::uint32_t segment) {
  KVD_CHECK(segments_[segment].state == SegmentState::kReady && ready_.size() > 1);
  std::erase(ready_, segment);
  segments_[segment].state = SegmentState::kRetired;
}

void Segments::completed(std::uint32_t segment, std::uint32_t page) {
  segments_[segment].completed_to = page;
  if (std::ranges::find(to_flush_, segment) == to_flush_.end()) to_flush_.push_back(segment);
}

void Segments::flush_begins() {
  for (const std::uint32_t s : to_flush_) segments_[s].flushing_to = segments_[s].completed_to;
}

void Segments::flushed() {
  std::erase_if(to_flush_, [this](std::uint32_t s) {
    Segment& segment = segments_[s];
    if (!segment.unflushed) segment.flushed_to = std::max(segment.flushed_to, segment.flushing_to);
    return segment.unflushed || segment.flushed_to == segment.completed_to;
  });
}

void Segments::lose_unflushed() {
  for (Segment& segment : segments_) {
    const bool open = segment.state == SegmentState::kOpen || segment.state == SegmentState::kSealing;
    if (!open && segment.completed_to == segment.flushed_to) continue;
    segment.lost_from = std::min(segment.lost_from, segment.flushed_to);
    segment.unflushed = true;
  }
  to_flush_.clear();
}

void Segments::flush_failed() {
  for (std::uint32_t i = 0; i < count(); ++i) segments_[i].unflushed = segments_[i].unflushed || readable(i);
}

void Segments::ready(std::uint32_t segment, std::uint64_t generation, std::uint64_t unopened) {
  segments_[segment].state = SegmentState::kReady;
  segments_[segment].generation = generation;
  segments_[segment].unopened = unopened;
  segments_[segment].removed = 0;
  segments_[segment].order = 0;
  segments_[segment].unflushed = segments_[segment].doomed = false;
  segments_[segment].completed_to = segments_[segment].flushing_to = segments_[segment].flushed_to = 0;
  segments_[segment].lost_from = UINT32_MAX;
  std::erase(to_flush_, segment);
  ready_.push_back(segment);
}

std::optional<std::uint32_t> Segments::open_next(bool last_too) {
  if (ready_.size() < (last_too ? 1 : 2)) return std::nullopt;
  const std::uint32_t segment = ready_.front();
  ready_.erase(ready_.begin());
  segments_[segment].state = SegmentState::kOpen;
  // Headers that are written together get ready in any order. Above all of earlier openings, whose generations are
  // lower.
  order_ = std::max(order_ + 1, segments_[segment].generation);
  segments_[segment].order = order_;
  return segment;
}

std::uint64_t Segments::ready_generation_min() const noexcept {
  std::uint64_t lowest = UINT64_MAX;
  for (const std::uint32_t segment : ready_) lowest = std::min(lowest, segments_[segment].generation);
  return lowest;
}

std::span<const std::uint32_t> Segments::recent(std::size_t max) {
  recent_.clear();
  for (auto s = policy_->victim(); s; s = policy_->next_victim(*s)) recent_.push_back(*s);
  std::ranges::reverse(recent_);
  recent_.resize(std::min(recent_.size(), max));
  return recent_;
}

std::uint32_t Segments::count_in(SegmentState state) const noexcept {
  return static_cast<std::uint32_t>(std::ranges::count(segments_, state, &Segment::state));
}

std::uint32_t Segments::occupied() const noexcept {
  return count_in(SegmentState::kOpen) + count_in(SegmentState::kSealing) + count_in(SegmentState::kSealed) +
         count_in(SegmentState::kUnread) + count_in(SegmentState::kRecovered);
}

}  // namespace kvd::store
