#include "store/device_segments.h"

#include <algorithm>

#include "base/check.h"

namespace kvd::store {

DeviceSegments::DeviceSegments(Segments& all, std::uint32_t first, std::uint32_t count,
                               std::unique_ptr<policy::EvictionPolicy> policy)
    : all_(all), first_(first), count_(count), policy_(std::move(policy)) {
  counts_[static_cast<std::size_t>(SegmentState::kFree)] = count;
  ready_.reserve(count);
  recent_.reserve(count);
  to_flush_.reserve(count);
}

void DeviceSegments::sealed(std::uint32_t segment, bool next_victim) {
  policy_->add(segment - first_);
  if (next_victim) policy_->demote(segment - first_);
}

std::optional<std::uint32_t> DeviceSegments::start_eviction(bool avoid_readers) {
  std::optional<std::uint32_t> chosen;
  if (avoid_readers) chosen = first_victim([&](std::uint32_t s) { return all_.at(s).readers == 0; });
  if (!chosen) chosen = victim();
  if (chosen) start_eviction_of(*chosen);
  return chosen;
}

std::optional<std::uint32_t> DeviceSegments::first_victim(const std::function<bool(std::uint32_t)>& is) const {
  auto chosen = victim();
  while (chosen && !is(*chosen)) chosen = numbered(policy_->next_victim(*chosen - first_));
  return chosen;
}

void DeviceSegments::start_eviction_of(std::uint32_t segment) {
  KVD_CHECK(all_.at(segment).state == SegmentState::kSealed);
  policy_->remove(segment - first_);
  all_.change(segment, SegmentState::kEvicting);
}

std::optional<std::uint32_t> DeviceSegments::start_preparing(SegmentState from) {
  if (count_in(from) == 0) return std::nullopt;
  std::uint32_t segment = first_;
  while (all_.at(segment).state != from) ++segment;
  all_.change(segment, SegmentState::kPreparing);
  return segment;
}

void DeviceSegments::retire_from(std::uint32_t from, std::optional<std::uint32_t> lent) {
  for (std::uint32_t s = from; s < end(); ++s)
    if (all_.at(s).state == SegmentState::kFree && s != lent) all_.change(s, SegmentState::kRetired);
}

void DeviceSegments::retire_ready(std::uint32_t segment) {
  KVD_CHECK(all_.at(segment).state == SegmentState::kReady && ready_.size() > 1);
  std::erase(ready_, segment);
  all_.change(segment, SegmentState::kRetired);
}

void DeviceSegments::completed(std::uint32_t segment, std::uint32_t page) {
  all_.at(segment).completed_to = page;
  if (std::ranges::find(to_flush_, segment) == to_flush_.end()) to_flush_.push_back(segment);
}

void DeviceSegments::flush_begins() {
  for (const std::uint32_t s : to_flush_) all_.at(s).flushing_to = all_.at(s).completed_to;
}

void DeviceSegments::flushed() {
  std::erase_if(to_flush_, [this](std::uint32_t s) {
    Segment& segment = all_.at(s);
    if (!segment.unflushed) segment.flushed_to = std::max(segment.flushed_to, segment.flushing_to);
    return segment.unflushed || segment.flushed_to == segment.completed_to;
  });
}

void DeviceSegments::lose_unflushed() {
  for (std::uint32_t s = first_; s < end(); ++s) {
    Segment& segment = all_.at(s);
    const bool open = segment.state == SegmentState::kOpen || segment.state == SegmentState::kSealing;
    if (!open && segment.completed_to == segment.flushed_to) continue;
    segment.lost_from = std::min(segment.lost_from, segment.flushed_to);
    segment.unflushed = true;
  }
  to_flush_.clear();
}

void DeviceSegments::flush_failed() {
  for (std::uint32_t s = first_; s < end(); ++s) all_.at(s).unflushed = all_.at(s).unflushed || all_.readable(s);
}

void DeviceSegments::ready(std::uint32_t segment, std::uint64_t generation, std::uint64_t unopened) {
  all_.change(segment, SegmentState::kReady);
  Segment& made = all_.at(segment);
  made.generation = generation;
  made.next_generation = 0;
  made.unopened = unopened;
  made.removed = 0;
  made.order = 0;
  made.unflushed = made.doomed = false;
  made.completed_to = made.flushing_to = made.flushed_to = 0;
  made.lost_from = UINT32_MAX;
  std::erase(to_flush_, segment);
  ready_.push_back(segment);
}

std::optional<std::uint32_t> DeviceSegments::open_next(bool last_too) {
  if (ready_.size() < (last_too ? 1 : 2)) return std::nullopt;
  const std::uint32_t segment = ready_.front();
  ready_.erase(ready_.begin());
  all_.change(segment, SegmentState::kOpen);
  all_.at(segment).order = all_.next_order(all_.at(segment).generation);
  return segment;
}

std::span<const std::uint32_t> DeviceSegments::recent(std::size_t max) {
  recent_.clear();
  for (auto s = policy_->victim(); s; s = policy_->next_victim(*s)) recent_.push_back(*s);
  std::ranges::reverse(recent_);
  recent_.resize(std::min(recent_.size(), max));
  return recent_;
}

bool DeviceSegments::counts_agree() const noexcept {
  std::array<std::uint32_t, kSegmentStates> found{};
  for (std::uint32_t s = first_; s < end(); ++s) ++found[static_cast<std::size_t>(SegmentState{all_.at(s).state})];
  return found == counts_;
}

std::uint32_t DeviceSegments::occupied() const noexcept {
  return count_in(SegmentState::kOpen) + count_in(SegmentState::kSealing) + count_in(SegmentState::kSealed) +
         count_in(SegmentState::kUnread) + count_in(SegmentState::kRecovered) + count_in(SegmentState::kDoubtful);
}

}  // namespace kvd::store
