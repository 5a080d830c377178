// Loop: one thread's event loop. Timers, posted work and file-descriptor readiness; the Disk of src/io/disk.h completes
// on it. Every object of the store, the server and the client belongs to one loop and is touched on its thread only.
//
// Two implementations run the same callers: RealLoop (epoll; the io_uring ring of a Disk is one of the descriptors it
// watches) and SimLoop (src/io/sim), where time is virtual and advances to the next timer when nothing else is ready.
// Callbacks come from run_once(), never from inside the call that armed them, and are the last thing the loop does with
// an object, so a callback may destroy what it belongs to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace kvd::io {

using Callback = std::move_only_function<void()>;

class Loop;

// A timer owned by the caller. One shot: arm() again from the callback to repeat. Disarms itself when destroyed.
// Neither arming nor firing allocates once the loop's heap has grown to the number of timers.
class Timer {
 public:
  Timer(Loop& loop, Callback on_fire) : loop_(loop), on_fire_(std::move(on_fire)) {}
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Fires once at or after `at` (moves an armed timer). Loop thread only.
  void arm(Time at);
  void arm_in(Duration delay);
  void disarm();
  [[nodiscard]] bool armed() const noexcept { return armed_; }

 private:
  friend class TimerQueue;
  Loop& loop_;
  Callback on_fire_;
  Time at_{};
  std::uint64_t order_ = 0;  // ties fire in the order they were armed
  std::size_t slot_ = 0;     // position in TimerQueue's heap while armed
  bool* gone_ = nullptr;     // set while on_fire_ runs: tells the queue that the callback destroyed its timer
  bool armed_ = false;
};

// Readiness of one descriptor, owned by the caller; the descriptor stays the caller's, who closes it after stop().
// Unwatches when destroyed.
class Watch {
 public:
  enum Interest : std::uint32_t { kNone = 0, kRead = 1, kWrite = 2 };
  using OnReady = std::move_only_function<void(std::uint32_t ready)>;  // bits of Interest; errors and hang-ups set both

  Watch(Loop& loop, OnReady on_ready) : loop_(loop), on_ready_(std::move(on_ready)) {}
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Level-triggered. kIo when the kernel refuses the descriptor. set() changes the interest of a started watch; with
  // kNone nothing is reported, hang-ups neither. After stop() not even readiness that the loop has already seen comes.
  Status start(int fd, std::uint32_t interest);
  Status set(std::uint32_t interest);
  void stop();
  [[nodiscard]] int fd() const noexcept { return fd_; }

 private:
  friend class Loop;
  Loop& loop_;
  OnReady on_ready_;
  int fd_ = -1;
  std::uint32_t interest_ = kNone;
  bool* gone_ = nullptr;  // as in Timer
};

// Something that comes without a descriptor telling of it: bytes in memory that a peer writes to. Owned by the caller;
// all calls come on the loop's thread. A loop that is about to sleep says so first, and from then on a descriptor has
// to wake it.
class Polled {
 public:
  virtual ~Polled() = default;
  // Whether run() has something to do now. Looks at memory only: a loop that spins asks without a pause.
  [[nodiscard]] virtual bool ready() = 0;
  // The loop sleeps from now on, unless ready() is true right behind this call.
  virtual void before_sleep() = 0;
  // It does not any more. Only behind before_sleep().
  virtual void after_sleep() = 0;
  // Called once a turn. May remove and destroy any Polled.
  virtual void run() = 0;
};

class Loop : public Clock {
 public:
  // Queues `work` for the loop thread. Thread-safe, wakes the loop. The queue is unbounded by itself: callers bound
  // what they post (operations are limited by their owners).
  virtual void post(Callback work) = 0;
  // One turn: descriptors, then posted work, then timers (those that were a millisecond away or more when it began may
  // wait for the next one); what a callback posts or arms runs in a later phase or in the
  // next turn, so nobody starves. Waits at most `max_wait` (Duration::max() = for ever) for the first callback,
  // less when interrupted. Returns whether anything ran. Not to be called from a callback.
  virtual bool run_once(Duration max_wait) = 0;
  // run_once until stop(). stop() is thread-safe, may come first and is final.
  void run();
  virtual void stop() = 0;
  // No later than this turn's readiness came: when the loop had looked the last time before, or, after it slept, now.
  // How long the scheduler took to wake it is not in it. In virtual time nothing waits for its turn.
  [[nodiscard]] virtual Time ready_since() const { return now(); }
  // When this turn began, behind its sleep: a stamp that costs no look at the clock, for who does not mind a turn. Loop
  // thread only.
  [[nodiscard]] virtual Time turn_begun() const { return now(); }

  // Loop thread only. Added ones are removed before they are destroyed.
  void add(Polled& polled);
  void remove(Polled& polled);
  // Something is likely to come soon: the loop looks at all Polled, and at descriptors, for a moment before it sleeps,
  // if it spins at all.
  virtual void expect() {}
  // Any thread: takes turns in place of the loop's thread, which sleeps: first `work`, when there is some, then Polled,
  // posted work and timers, and what descriptors tell of, until done() is true or nothing has come for `limit` (zero
  // where the process has one core); without `done` one turn. So who waits for something need not be woken by another
  // thread. Where there is Polled, `in_memory` says that what is waited for comes that way: descriptors, which cost a
  // system call each time, are left to the loop's thread, but for a look before a timer that is due. The first call in
  // a second does without them, too, as the loop's thread has to sleep elsewhere for them. Everything that belongs to
  // the loop may then be touched here, under the loop's lock. False, and nothing was done: another thread is within a
  // turn, or this loop does not know this. Not to be called from a callback.
  virtual bool help(Duration limit, const std::function<void()>& work, const std::function<bool()>& done,
                    bool in_memory = true) {
    static_cast<void>(limit), static_cast<void>(work), static_cast<void>(done), static_cast<void>(in_memory);
    return false;
  }
  // How long that moment is; zero = it sleeps at once. Of no effect in virtual time, and where the process has one core
  // only, as it would wait for what cannot run. Before run_once().
  virtual void set_spin(Duration) {}

 protected:
  virtual bool stopped() const = 0;
  friend class Timer;
  friend class Watch;
  virtual void arm_timer(Timer& timer, Time at) = 0;
  virtual void disarm_timer(Timer& timer) = 0;
  virtual Status watch_start(Watch& watch) = 0;
  virtual Status watch_set(Watch& watch) = 0;
  virtual void watch_stop(Watch& watch) = 0;
  // For implementations: runs the callback so that it may destroy its Watch.
  static void notify(Watch& watch, std::uint32_t ready);
  [[nodiscard]] static std::uint32_t interest(const Watch& watch) noexcept { return watch.interest_; }

  // For implementations, of what was added.
  [[nodiscard]] bool has_polled() const noexcept { return !polled_.empty(); }
  [[nodiscard]] bool polled_ready();
  // Says that the loop sleeps. False: something is ready, it must not. after_sleep() follows in both cases.
  [[nodiscard]] bool before_sleep();
  void after_sleep();
  std::size_t run_polled();

 private:
  std::vector<Polled*> polled_;  // null: removed while they run
  bool polling_ = false;
  bool announced_ = false;
};

// The production loop. kIo when epoll or eventfd cannot be had.
Result<std::unique_ptr<Loop>> make_real_loop();

}  // namespace kvd::io
