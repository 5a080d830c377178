#include "store/read_watch.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace kvd::store {

void ReadWatch::submitted(Read& read, Time now, std::uint64_t bytes) {
  const auto moving = std::chrono::duration<double>(static_cast<double>(bytes) / kSlowestBytesPerS);
  read.slow_at = after(after(now, kSlow), std::chrono::duration_cast<Duration>(moving));
  read.counted = false;
  reads_.push_back(read);
}

void ReadWatch::completed(Read& read, Time now) {
  if (!reads_.holds(read)) return;  // it was submitted while the device was off
  reads_.erase(read);
  completed_ = now;
  if (!read.counted) ++(now >= read.slow_at ? slow_ : fast_);
}

const char* ReadWatch::judge(Time now, bool slow_too) {
  for (Read* read = reads_.front(); read != nullptr; read = List<Read, &Read::link>::after(*read))
    if (now >= read->slow_at && !std::exchange(read->counted, true)) ++slow_;
  const auto seconds = std::clamp<std::int64_t>((now - judged_) / kEvery, 1, kWindowSeconds);
  constexpr std::uint64_t kWindow = (std::uint64_t{1} << kWindowSeconds) - 1;
  slow_seconds_ = (slow_seconds_ << seconds | (slow_ > 0 && slow_ >= fast_ ? 1 : 0)) & kWindow;
  other_seconds_ = (other_seconds_ << seconds | (fast_ > slow_ ? 1 : 0)) & kWindow;
  slow_ = fast_ = 0;
  judged_ = now;
  if (const Read* oldest = reads_.front(); oldest != nullptr) {
    const bool none = now >= after(completed_, kNoneMax);
    if (none && now >= after(oldest->slow_at, kNoneMax)) return "no read completes";
    if (now >= after(oldest->slow_at, kOneMax)) return "a read does not complete";
  }
  const int slow = std::popcount(slow_seconds_);
  const bool most = slow >= kSlowSecondsMin && slow >= 2 * std::popcount(other_seconds_);
  return slow_too && most ? "reads take too long" : nullptr;
}

void ReadWatch::forget(Time now) {
  for (Read* read = reads_.front(); read != nullptr; read = List<Read, &Read::link>::after(*read))
    read->slow_at = std::max(read->slow_at, after(now, kSlow));
  slow_ = fast_ = 0;
  slow_seconds_ = other_seconds_ = 0;
  judged_ = now;
}

}  // namespace kvd::store
