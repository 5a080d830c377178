// OpDeadline: the two limits of one operation. `total` counts from its submission. `progress` ends an operation when
// its connection has moved no byte for that long while the depot owed us something, and the depot has not said either
// that it is there; it rests while the operation waits for its caller (layers of a put that are not released yet).
//
// Progress is the connection's, not the operation's: an operation whose bytes come after another's on the same
// connection is not late. So a byte costs one time stamp per connection and no bookkeeping per operation.
// Pure: time comes in as an argument. Belongs to the client's I/O thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace kvd::client {

class OpDeadline {
 public:
  OpDeadline() = default;
  // Limits of zero or less do not exist.
  OpDeadline(Time submitted, Duration total, Duration progress) noexcept
      : total_at_(total > Duration::zero() ? after(submitted, total) : kNever),
        progress_(progress > Duration::zero() ? progress : Duration::max()),
        owed_since_(submitted) {}

  // From now on the depot owes us something (true) or we wait for our caller (false). Starts out as true.
  void set_owed(bool owed, Time now) noexcept {
    if (owed && !owed_) owed_since_ = now;
    owed_ = owed;
  }
  [[nodiscard]] bool owed() const noexcept { return owed_; }

  // When to ask the depot whether it is there: half of the time without progress has passed. kNever without that limit.
  [[nodiscard]] Time ask_at(Time moved_at) const noexcept {
    if (!owed_ || total_only()) return kNever;
    return after(std::max(owed_since_, moved_at), progress_ / 2);
  }
  // When to look again: the earliest time at which expired() could be true if nothing moves any more. `moved_at` is
  // when the connection last moved a byte, or the depot said that it is there. kNever without limits.
  [[nodiscard]] Time check_at(Time moved_at) const noexcept {
    if (!owed_ || total_only()) return total_at_;
    return std::min(total_at_, after(std::max(owed_since_, moved_at), progress_));
  }
  [[nodiscard]] bool expired(Time now, Time moved_at) const noexcept { return now >= check_at(moved_at); }

  // Whether an expiry is the depot's failure. One that is merely slower than `total` allows has not failed: with a
  // progress limit it has only when the connection was still for that long while the depot owed us something.
  [[nodiscard]] bool stalled(Time now, Time moved_at) const noexcept {
    return owed_ && (total_only() || now >= after(std::max(owed_since_, moved_at), progress_));
  }
  [[nodiscard]] bool total_only() const noexcept { return progress_ == Duration::max(); }

  // Milliseconds left of the total for the message header: at least 1, and 0 when there is no total.
  [[nodiscard]] std::uint32_t left_ms(Time now) const noexcept {
    if (total_at_ == kNever) return 0;
    const auto left = std::chrono::duration_cast<Millis>(total_at_ - now).count();
    return static_cast<std::uint32_t>(std::clamp<std::int64_t>(left, 1, UINT32_MAX));
  }

 private:
  Time total_at_ = kNever;
  Duration progress_ = Duration::max();
  Time owed_since_{};
  bool owed_ = true;
};

}  // namespace kvd::client
