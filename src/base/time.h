// Time: one monotonic clock behind an interface, so that a seed replays everything that waits.
//
// Production reads CLOCK_MONOTONIC through the loop (src/io/loop.h); tests run on SimClock (src/io/sim). Wall-clock
// time appears only in logs.
#pragma once

#include <chrono>

namespace kvd {

using Duration = std::chrono::nanoseconds;
using Millis = std::chrono::milliseconds;

// A point on the monotonic clock. Its zero means nothing; only differences do.
struct MonotonicClock {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<MonotonicClock>;
  static constexpr bool is_steady = true;
};
using Time = MonotonicClock::time_point;

inline constexpr Time kNever = Time::max();  // a deadline that does not exist

class Clock {
 public:
  virtual ~Clock() = default;
  // The current time. Thread-safe, does not block.
  [[nodiscard]] virtual Time now() const = 0;
};

// `at + d` without overflow: kNever stays kNever.
constexpr Time after(Time at, Duration d) noexcept { return d > kNever - at ? kNever : at + d; }

}  // namespace kvd
