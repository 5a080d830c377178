#include "store/segments.h"

#include <algorithm>

#include "base/check.h"
#include "store/device_segments.h"

namespace kvd::store {

Segments::Segments() = default;
Segments::~Segments() = default;

Segments::Segments(std::uint32_t count, std::unique_ptr<policy::EvictionPolicy> policy) {
  add_device(count, std::move(policy));
}

DeviceSegments& Segments::add_device(std::uint32_t count, std::unique_ptr<policy::EvictionPolicy> policy) {
  KVD_CHECK(devices_.size() <= UINT8_MAX);
  const auto first = this->count();
  segments_.resize(first + count);
  for (std::uint32_t i = 0; i < count; ++i) segments_[first + i].device = static_cast<std::uint8_t>(devices_.size());
  devices_.push_back(std::make_unique<DeviceSegments>(*this, first, count, std::move(policy)));
  return *devices_.back();
}

void Segments::change(std::uint32_t segment, SegmentState to) noexcept {
  device_of(segment).counted(segments_[segment].state, to);
  segments_[segment].state.state_ = to;
}

void Segments::touch(std::uint32_t segment) { device_of(segment).touch(segment); }

void Segments::demote(std::uint32_t segment) { device_of(segment).demote(segment); }

void Segments::seal(std::uint32_t segment, bool next_victim) {
  change(segment, SegmentState::kSealed);
  device_of(segment).sealed(segment, next_victim);
}

std::uint64_t Segments::unopened(std::uint8_t device) const noexcept {
  std::uint64_t lowest = UINT64_MAX;
  for (const Segment& segment : segments_) {
    const bool takes_frames =
        segment.state == SegmentState::kReady || (segment.state == SegmentState::kOpen && segment.device != device);
    if (takes_frames) lowest = std::min(lowest, segment.generation);
    if (segment.next_generation != 0) lowest = std::min(lowest, segment.next_generation);
  }
  return lowest;
}

// Headers that are written together get ready in any order. Above all of earlier openings, whose generations are lower.
std::uint64_t Segments::next_order(std::uint64_t generation) noexcept {
  return order_ = std::max(order_ + 1, generation);
}

}  // namespace kvd::store
