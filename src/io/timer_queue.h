// TimerQueue: the armed timers of one loop, a binary heap of borrowed Timers ordered by time, then by order of arming.
//
// Owned by a Loop implementation and touched on its thread only. arm and disarm cost O(log n); the heap's memory is the
// only allocation and is kept. A timer leaves the heap when it fires, is disarmed or is destroyed, so n is bounded by
// the number of Timer objects that the loop's users own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/time.h"
#include "io/loop.h"

namespace kvd::io {

class TimerQueue {
 public:
  TimerQueue() { heap_.reserve(1024); }
  // No timer may be armed any more: its destructor would reach into a dead loop.
  ~TimerQueue();
  TimerQueue(const TimerQueue&) = delete;
  TimerQueue& operator=(const TimerQueue&) = delete;

  // Arms or moves. A time before the last fire_due() counts as that time, so that a timer which arms itself for the
  // past cannot get in front of the others for ever.
  void arm(Timer& timer, Time at);
  void disarm(Timer& timer);

  // When the first timer is due; kNever when none is armed.
  [[nodiscard]] Time next() const noexcept { return heap_.empty() ? kNever : heap_.front()->at_; }
  // Runs the timers that are due at `now` and were armed before this call. Returns how many. Callbacks may arm, disarm
  // and destroy any timer, their own too.
  std::size_t fire_due(Time now);

 private:
  [[nodiscard]] static bool before(const Timer& a, const Timer& b) noexcept;
  static void fire(Timer& timer);
  void place(Timer* timer, std::size_t slot) noexcept;
  void sift_up(std::size_t slot) noexcept;
  void sift_down(std::size_t slot) noexcept;

  std::vector<Timer*> heap_;
  std::uint64_t order_next_ = 0;
  Time fired_at_ = Time::min();
};

}  // namespace kvd::io
