#include "client/prefault.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace kvd::client {

Prefault::Prefault(io::Loop& loop, std::function<bool()> busy)
    : loop_(loop), busy_(std::move(busy)), timer_(loop, [this] { step(); }) {}

void Prefault::start(SharedMapping mapping) {
  stop();
  mapping_ = std::move(mapping);
  missed_before_ = std::numeric_limits<std::uint64_t>::max();
  round_pause_ = kRoundPause;
  const std::uint64_t bytes = std::min<std::uint64_t>(mapping_->bytes().size(), kPrefaultBytesMax);
  for (std::uint64_t at = 0; at < bytes; at += kStepBytes) missing_.push_back(at);
  std::ranges::reverse(missing_);
  left_.swap(missing_);
  timer_.arm(loop_.now() + kPause);
}

void Prefault::stop() {
  timer_.disarm();
  mapping_.reset();
  left_.clear();
  missing_.clear();
  missing_bytes_ = 0;
}

void Prefault::step() {
  if (busy_()) return timer_.arm_in(kPause);
  const std::uint64_t at = left_.back();
  left_.pop_back();
  const Bytes bytes = mapping_->bytes();
  const std::uint64_t missing = mapping_->prefault(bytes.subspan(at, std::min(kStepBytes, bytes.size() - at)));
  if (missing > 0) missing_.push_back(at);
  missing_bytes_ += missing;
  if (left_.empty()) return end_round();
  timer_.arm_in(kPause);
}

void Prefault::end_round() {
  if (missing_.empty()) return stop();
  round_pause_ = missing_bytes_ < missed_before_ ? kRoundPause : 2 * round_pause_;
  if (round_pause_ > kRoundPauseMax) return stop();
  missed_before_ = std::exchange(missing_bytes_, 0);
  std::ranges::reverse(missing_);
  left_.swap(missing_);
  timer_.arm_in(round_pause_);
}

}  // namespace kvd::client
