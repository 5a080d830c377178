// OpDeadline: the two limits of one operation. `total` counts from its submission. `progress` ends an operation when
// its connection has moved no byte for that long while the depot owed us something; it rests while the operation
// waits for its caller (layers of a put that are not released yet).
//
// Progress is the connection's, not the operation's: an operation whose bytes come after another's on the same
// connection is not late. So a byte costs one time stamp per connection and no bookkeeping per operation.
//
// A depot whose drive pauses sends no bytes, and is there. When half of `progress` has passed it is asked; its word
// counts as a byte does, for kWordLimit behind the last byte that came from it or the last body that it got. It
// prolongs an operation and excuses none that ends: that one has stalled (docs/decisions/0005-word-of-the-depot.md).
// With a `progress` of more than twice kWordLimit it is not asked.
//
// The client itself may stand still: a thread that gets no core, a machine that pauses, most often with the depot on
// it. A check that comes much later than it was due says nothing about the depot, which gets half of `progress` more.
// Pure: time comes in as an argument. Belongs to the client's I/O thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace kvd::client {

// A drive pauses now and then (a virtual one stood still for 222 ms in one of 8 first reads of 159 MB), and a load that
// is given up costs seconds of computing. One that hangs for longer is a failure.
inline constexpr Duration kWordLimit = std::chrono::seconds(1);

// How late threads are on a machine that is merely busy: less excuses nothing, however short `progress` is.
inline constexpr Duration kLateMin = Millis(5);

// What a connection shows of its depot.
struct Signs {
  Time moved;                 // the last byte in either direction (control connection: from the depot)
  Time bodies = Time::min();  // the last that came from the depot, or the last body that went out
  Time word = Time::min();    // the depot's last word that it is there
};

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

  // How long the depot's word counts for this operation.
  [[nodiscard]] Time word_ends(const Signs& signs) const noexcept {
    return after(std::max(owed_since_, signs.bodies), kWordLimit);
  }
  // When the connection last moved a byte, or the depot's word stood for one.
  [[nodiscard]] Time alive_at(const Signs& signs) const noexcept {
    return std::max(signs.moved, std::min(signs.word, word_ends(signs)));
  }
  // When to ask for its word; kNever where it would not count.
  [[nodiscard]] Time ask_at(const Signs& signs) const noexcept {
    if (!owed_ || total_only()) return kNever;
    const Time at = after(std::max(owed_since_, alive_at(signs)), progress_ / 2);
    return at > word_ends(signs) ? kNever : at;
  }
  // Of one that has stalled: the depot has given its word to the end, and nothing else came on this connection.
  [[nodiscard]] bool word_used_up(Time now, const Signs& signs) const noexcept {
    return !total_only() && now >= word_ends(signs) && signs.word >= std::max(owed_since_, signs.bodies);
  }

  // When to look again: the earliest time at which expired() could be true if nothing moves any more. kNever
  // without limits.
  [[nodiscard]] Time check_at(Time alive_at) const noexcept {
    if (!owed_ || total_only()) return total_at_;
    return std::min(total_at_, after(std::max(owed_since_, alive_at), progress_));
  }
  [[nodiscard]] bool expired(Time now, Time alive_at) const noexcept { return now >= check_at(alive_at); }

  // A check that was due at `due` comes at `now`: this client did not run meanwhile, so that it has not waited either.
  // `total` goes on.
  void note_late(Time due, Time now) noexcept {
    if (total_only() || now - due <= std::max<Duration>(progress_ / 4, kLateMin)) return;
    owed_since_ = std::max(owed_since_, now - progress_ / 2);
  }

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
