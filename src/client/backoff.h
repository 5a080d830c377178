// Backoff: how long to wait before the next attempt to connect: 10 ms, doubling to 1 s, each shortened by up to a
// quarter at random so that the clients of a restarted depot do not come back in one beat. Pure; I/O thread.
#pragma once

#include <algorithm>

#include "base/random.h"
#include "base/time.h"

namespace kvd::client {

inline constexpr Duration kBackoffFirst = Millis(10);  // a restarted process listens again within milliseconds
inline constexpr Duration kBackoffMax = Millis(1000);  // an idle client of a depot that is away: one packet a second

class Backoff {
 public:
  explicit Backoff(std::uint64_t seed) noexcept : random_(seed) {}

  Duration next() noexcept {
    const Duration delay = delay_ - Duration(random_.below(static_cast<std::uint64_t>(delay_.count() / 4)));
    delay_ = std::min(2 * delay_, kBackoffMax);
    return delay;
  }
  void reset() noexcept { delay_ = kBackoffFirst; }

 private:
  Random random_;
  Duration delay_ = kBackoffFirst;
};

}  // namespace kvd::client
