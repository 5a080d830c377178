// SimClock and SimLoop: the deterministic twin of the real loop. Time is virtual: it stands still while anything can
// run and then jumps to the next timer, so a test of a 30 s deadline takes microseconds and a seed replays everything.
//
// For tests and simulations. A SimLoop is driven by the thread that calls run_once(); work may be posted by others, at
// the price of determinism. Several loops may share a clock: each turn moves it by that loop's own timers only.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

#include "base/time.h"
#include "io/loop.h"
#include "io/timer_queue.h"

namespace kvd::io {

class SimClock final : public Clock {
 public:
  [[nodiscard]] Time now() const override { return Time(Duration(now_.load(std::memory_order_relaxed))); }
  // Moves time forward; a time in the past changes nothing.
  void advance_to(Time at);

 private:
  // Not zero: code that takes zero for "never happened" shall show itself.
  std::atomic<Duration::rep> now_ = Duration(std::chrono::hours(1)).count();
};

class SimLoop final : public Loop {
 public:
  // The clock is borrowed and outlives the loop.
  explicit SimLoop(SimClock& clock) : clock_(clock) {}

  [[nodiscard]] Time now() const override { return clock_.now(); }
  void post(Callback work) override;
  // A turn in virtual time: when nothing can run now, time moves to the next timer, at most by `max_wait`. Aborts when
  // the wait is endless and there is no timer: nothing could ever happen.
  bool run_once(Duration max_wait) override;
  void stop() override;

  // Runs what can run without time passing.
  void settle();
  // Runs everything of the next `duration`; time ends exactly that much later.
  void run_for(Duration duration);
  // Runs until `done()`, at most for `limit`. Returns whether it came true.
  bool run_until(const std::function<bool()>& done, Duration limit);

 protected:
  [[nodiscard]] bool stopped() const override;
  void arm_timer(Timer& timer, Time at) override { timers_.arm(timer, at); }
  void disarm_timer(Timer& timer) override { timers_.disarm(timer); }
  // Descriptors are polled in the order they were started. Virtual time does not wait for them, so both ends must be
  // driven by this thread (socket pairs, pipes).
  Status watch_start(Watch& watch) override;
  Status watch_set(Watch& watch) override;
  void watch_stop(Watch& watch) override;

 private:
  struct Ready {
    Watch* watch;  // null once stopped
    std::uint32_t bits;
  };

  [[nodiscard]] bool has_posted() const;
  void poll_watches();
  std::size_t run_ready();
  std::size_t run_posted();

  SimClock& clock_;
  TimerQueue timers_;
  std::vector<Watch*> watches_;
  std::vector<Ready> ready_;
  bool running_ = false;

  mutable std::mutex mutex_;  // guards the rest
  std::vector<Callback> posted_;
  bool stopped_ = false;
};

}  // namespace kvd::io
