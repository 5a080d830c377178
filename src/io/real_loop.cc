// RealLoop: epoll for descriptors, an eventfd to be woken by other threads, a heap for timers. It sleeps in one system
// call until one of the three has something, so a loop without work uses no CPU.
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <ctime>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/cores.h"
#include "io/fd.h"
#include "io/loop.h"
#include "io/timer_queue.h"

namespace kvd::io {
namespace {

// Events taken by one system call. More are left for the next turn, after posted work and timers had theirs.
constexpr std::size_t kEventsPerTurn = 128;

// Spinning sees rings and posted work; descriptors and timers are looked at this often meanwhile.
constexpr Duration kSpinStep = std::chrono::microseconds(10);

// Where the peer has no core to run on, because it waits for this one, spinning delays what it waits for. So after some
// that were for nothing it rests: one in a hundred of the time at most is spun away.
constexpr int kVainSpinsMax = 4;
constexpr Duration kSpinRest = std::chrono::milliseconds(5);

// While others take turns the loop's thread looks at the timers this often, so that they need not wake it for each that
// they arm.
constexpr Duration kNap = std::chrono::milliseconds(20);
constexpr Duration kNapsFor = std::chrono::seconds(1);

// A timer that far away when a turn begins is not due in it, and the clock need not be looked at: a look takes 25 to 50
// ns. In a turn that takes longer it has the next one.
constexpr Duration kFar = std::chrono::milliseconds(1);

constexpr Duration kSlept = std::chrono::microseconds(20);  // a wait that long had nothing to tell at first

std::uint32_t to_epoll(std::uint32_t interest) noexcept {
  return ((interest & Watch::kRead) != 0 ? static_cast<std::uint32_t>(EPOLLIN) : 0) |
         ((interest & Watch::kWrite) != 0 ? static_cast<std::uint32_t>(EPOLLOUT) : 0);
}

timespec to_timespec(Duration d) noexcept {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(d);
  return {.tv_sec = seconds.count(), .tv_nsec = (d - seconds).count()};
}

// For kernels without epoll_pwait2 (before 5.11): rounded up, so that a timer is never waited for in a busy loop.
int to_millis_up(Duration d) noexcept {
  const auto millis = std::chrono::ceil<Millis>(d).count();
  return millis > INT_MAX ? INT_MAX : static_cast<int>(millis);
}

}  // namespace

class RealLoop final : public Loop {
 public:
  RealLoop(UniqueFd epoll, UniqueFd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}
  ~RealLoop() override { KVD_CHECK(!running_); }

  [[nodiscard]] Time now() const override {
    timespec ts{};
    KVD_CHECK(::clock_gettime(CLOCK_MONOTONIC, &ts) == 0);
    return Time(std::chrono::seconds(ts.tv_sec) + std::chrono::nanoseconds(ts.tv_nsec));
  }

  void post(Callback work) override {
    bool wake = false;
    {
      const std::lock_guard lock(mutex_);
      posted_.push_back(std::move(work));
      has_posted_.store(true, std::memory_order_release);
      wake = std::exchange(waiting_, false);
    }
    if (wake) wake_up();
  }

  void stop() override {
    bool wake = false;
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      wake = std::exchange(waiting_, false);
    }
    if (wake) wake_up();
  }

  bool run_once(Duration max_wait) override;
  [[nodiscard]] Time ready_since() const override { return ready_since_; }
  [[nodiscard]] Time turn_begun() const override { return turn_begun_; }
  void expect() override { expects_ = true; }
  bool help(Duration limit, const std::function<void()>& work, const std::function<bool()>& done,
            bool in_memory) override;
  void set_spin(Duration spin) override { spin_ = can_spin_ ? spin : Duration::zero(); }

 protected:
  [[nodiscard]] bool stopped() const override {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }
  void arm_timer(Timer& timer, Time at) override { timers_.arm(timer, at); }
  void disarm_timer(Timer& timer) override { timers_.disarm(timer); }
  Status watch_start(Watch& watch) override {
    return interest(watch) == Watch::kNone ? Status{} : control(EPOLL_CTL_ADD, watch);
  }
  Status watch_set(Watch& watch) override;
  void watch_stop(Watch& watch) override;

 private:
  [[nodiscard]] bool spin(Duration max_wait);
  bool look_on(Time current) noexcept;
  [[nodiscard]] bool no_timer_near() const noexcept { return timers_.next() > turn_begun_ + kFar; }
  std::size_t run_memory();
  std::size_t run_here();
  void help_in_memory(Duration limit, const std::function<bool()>& done);
  void help_with_descriptors(Duration limit, const std::function<bool()>& done);
  void leave();
  [[nodiscard]] bool may_spin(Time current) const noexcept { return can_spin_ && current >= spin_rests_until_; }
  void note_spin(bool in_vain, Time current) noexcept;
  [[nodiscard]] Duration wait_time(Duration max_wait);
  [[nodiscard]] int look();
  [[nodiscard]] int wait_outside(Duration duration);
  [[nodiscard]] int wait_on(const UniqueFd& epoll, std::span<epoll_event> events, Duration duration);
  bool take_descriptors();
  void give_descriptors() noexcept;
  std::size_t run_descriptors();
  void wait(Duration duration, std::unique_lock<std::mutex>& turn);
  std::size_t run_events();
  std::size_t run_posted();
  Status control(int operation, Watch& watch);
  void wake_up() noexcept;
  void drain_wake() noexcept;

  UniqueFd epoll_;
  UniqueFd wake_;
  // Tells of epoll_: where the loop's thread sleeps while others take turns. Who takes a turn silences it, so that what
  // comes for him wakes nobody else. Made by the first that wants it, and then kept.
  UniqueFd outside_;

  // Held by the thread that takes a turn, which is the loop's thread or a helper; the loop's thread sleeps without it.
  // Guards all below that mutex_ does not, but for what only its sleep touches: slept_ and has_pwait2_.
  std::mutex turn_;
  mutable std::mutex mutex_;  // guards the next three
  std::vector<Callback> posted_;
  bool waiting_ = false;  // the loop sleeps or is about to: whoever adds work writes to wake_
  bool stopped_ = false;
  std::atomic<bool> has_posted_{false};  // posted_ is not empty, or was not a moment ago

  // Of who takes a turn.
  std::vector<Callback> batch_;  // posted work being run; its memory swaps with posted_
  TimerQueue timers_;
  std::array<epoll_event, kEventsPerTurn> slept_{};   // what ended the sleep of the loop's thread
  std::array<epoll_event, kEventsPerTurn> events_{};  // being delivered
  std::size_t events_end_ = 0;
  std::size_t events_at_ = 0;  // the first event not yet delivered
  Time looked_at_ = now();     // when the last wait ended: what came before that it has told of
  Time ready_since_ = looked_at_;
  Time turn_begun_ = looked_at_;
  const bool can_spin_ = has_other_cores();
  Duration spin_ = Duration::zero();
  bool expects_ = false;           // something, from the next look at the clock on
  Time spin_until_ = Time::min();  // and until then
  Time spun_until_ = Time::min();  // when the last spin ended
  bool looks_ = false;             // at descriptors, again and again
  int vain_spins_ = 0;             // in a row
  Time spin_rests_until_{};
  bool asleep_ = false;  // the loop's thread is
  bool sleeps_outside_ = false;
  bool helping_ = false;     // delivers events: what wakes the loop's thread is left to it
  Time asleep_until_{};      // at most
  bool was_helped_ = false;  // since it fell asleep
  Time helped_at_{};
  bool has_pwait2_ = true;
  bool running_ = false;
};

bool RealLoop::run_once(Duration max_wait) {
  std::unique_lock turn(turn_);
  KVD_CHECK(!running_);
  running_ = true;
  const bool spins = spin(max_wait);
  // Descriptors were looked at a moment ago.
  if (spins && spun_until_ - looked_at_ < kSpinStep && polled_ready()) {
    ready_since_ = looked_at_;
    turn_begun_ = spun_until_;
    const std::size_t ran = run_memory();
    running_ = false;
    return ran > 0;
  }
  Duration duration = wait_time(spins ? Duration::zero() : max_wait);
  if (duration > Duration::zero() && has_polled() && !before_sleep()) duration = Duration::zero();
  wait(duration, turn);
  after_sleep();
  const std::size_t seen = run_events();
  if (seen > 0 && std::exchange(looks_, false)) note_spin(false, looked_at_);
  const std::size_t ran = seen + run_memory();
  running_ = false;
  return ran > 0;
}

// All but descriptors.
std::size_t RealLoop::run_memory() {
  std::size_t ran = run_polled();
  ran += run_posted();
  return no_timer_near() ? ran : ran + timers_.fire_due(now());
}

// The same for a helper, who has not looked at descriptors: what they tell of is seen before a timer that is due, or
// peers that have answered would be taken for silent where the loop's thread is late.
std::size_t RealLoop::run_here() {
  std::size_t ran = run_polled();
  ran += run_posted();
  if (no_timer_near()) return ran;
  const Time current = now();
  if (timers_.next() > current) return ran;
  ran += run_descriptors();
  return ran + timers_.fire_due(current);
}

bool RealLoop::help(Duration limit, const std::function<void()>& work, const std::function<bool()>& done,
                    bool in_memory) {
  const std::unique_lock turn(turn_, std::try_to_lock);
  if (!turn || !asleep_) return false;
  running_ = true;
  was_helped_ = true;
  after_sleep();
  turn_begun_ = helped_at_ = now();
  if (work) work();
  if (!may_spin(helped_at_)) limit = Duration::zero();
  if ((has_polled() && in_memory) || !done) {
    help_in_memory(limit, done);
  } else {
    help_with_descriptors(limit, done);
  }
  leave();
  return true;
}

void RealLoop::help_in_memory(Duration limit, const std::function<bool()>& done) {
  for (Time current = now(), end = after(current, limit);;) {
    if (run_here() > 0) end = after(now(), limit);
    if (!done || done() || !has_polled()) break;
    // A timer that is due, or far a turn ago and due by now, ends it too.
    const Time look_until = std::min(end, timers_.next());
    for (current = now(); current < look_until && !polled_ready() && !has_posted_.load(std::memory_order_acquire);) {
      pause_core();
      current = now();
    }
    turn_begun_ = current;
    if (polled_ready()) {
      note_spin(false, current);
    } else if (current >= end) {
      if (limit > Duration::zero()) note_spin(true, current);
      break;
    }
  }
}

// The same for what descriptors tell of: two system calls, and the loop's thread need not be woken.
void RealLoop::help_with_descriptors(Duration limit, const std::function<bool()>& done) {
  run_here();
  if (limit == Duration::zero() || done() || !take_descriptors()) return;
  Time current = now();
  for (Time end = after(current, limit); current < end && !done(); current = now()) {
    turn_begun_ = current;
    std::size_t ran = run_descriptors();
    ran += run_memory();
    if (ran > 0) end = after(now(), limit);
  }
  note_spin(!done(), current);
  give_descriptors();
}

// From the loop's thread, which sleeps on outside_ only where somebody has asked for it.
bool RealLoop::take_descriptors() {
  epoll_event event{};
  if (sleeps_outside_) return ::epoll_ctl(outside_.get(), EPOLL_CTL_MOD, epoll_.get(), &event) == 0;
  if (outside_.ok()) return false;
  UniqueFd outside(::epoll_create1(EPOLL_CLOEXEC));
  event.events = EPOLLIN;
  if (outside.ok() && ::epoll_ctl(outside.get(), EPOLL_CTL_ADD, epoll_.get(), &event) == 0)
    outside_ = std::move(outside);
  return false;
}

// Tells at once of what has come meanwhile.
void RealLoop::give_descriptors() noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  KVD_CHECK(::epoll_ctl(outside_.get(), EPOLL_CTL_MOD, epoll_.get(), &event) == 0);
}

// A helper's; the loop's thread may be told of the same, and looks anew.
std::size_t RealLoop::run_descriptors() {
  const int count = ::epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()), 0);
  events_at_ = 0;
  events_end_ = count > 0 ? static_cast<std::size_t>(count) : 0;
  helping_ = true;
  const std::size_t ran = run_events();
  helping_ = false;
  return ran;
}

// The loop's thread goes on to sleep, unless there is something that it would sleep over.
void RealLoop::leave() {
  running_ = false;
  bool wake = timers_.next() < asleep_until_;
  if (has_polled() && !before_sleep()) wake = true;
  if (wake) wake_up();
}

// Looks at what descriptors do not tell of, for a step at most. True: this turn must not sleep.
bool RealLoop::spin(Duration max_wait) {
  if (max_wait <= Duration::zero()) return false;
  if (!has_polled() && !expects_ && !looks_) return false;
  Time current = now();
  spun_until_ = current;
  if (std::exchange(expects_, false)) spin_until_ = after(current, spin_);
  if (!has_polled()) return look_on(current);
  if (polled_ready()) return true;
  if (current >= spin_until_ || !may_spin(current)) return false;
  const Time end = std::min({spin_until_, current + kSpinStep, after(current, max_wait), timers_.next()});
  while (current < end && !polled_ready() && !has_posted_.load(std::memory_order_acquire)) {
    pause_core();
    current = now();
  }
  spun_until_ = current;
  if (polled_ready()) {
    note_spin(false, current);
  } else if (current >= spin_until_) {
    note_spin(true, current);
  }
  return true;
}

// The same for descriptors alone: turns follow each other until one has something.
bool RealLoop::look_on(Time current) noexcept {
  const bool looked = std::exchange(looks_, current < spin_until_ && may_spin(current));
  if (looked && !looks_) note_spin(true, current);
  return looks_;
}

void RealLoop::note_spin(bool in_vain, Time current) noexcept {
  vain_spins_ = in_vain ? vain_spins_ + 1 : 0;
  if (vain_spins_ < kVainSpinsMax) return;
  vain_spins_ = kVainSpinsMax - 1;  // the next one is a try
  spin_rests_until_ = current + kSpinRest;
}

// Zero when there is posted work or a stop, else the time to the next timer or `max_wait`. Announces the wait.
Duration RealLoop::wait_time(Duration max_wait) {
  Duration duration = max_wait;
  if (const Time next = timers_.next(); next != kNever) {
    const Time current = now();
    duration = next <= current ? Duration::zero() : std::min(duration, next - current);
  }
  const std::lock_guard lock(mutex_);
  if (!posted_.empty() || stopped_) return Duration::zero();
  waiting_ = duration > Duration::zero();
  return std::max(duration, Duration::zero());
}

// Returns what the system call does.
int RealLoop::look() { return wait_on(epoll_, events_, Duration::zero()); }

// What comes is to be looked at under the loop's lock.
int RealLoop::wait_outside(Duration duration) {
  std::array<epoll_event, 1> events{};
  return wait_on(outside_, events, duration);
}

int RealLoop::wait_on(const UniqueFd& epoll, std::span<epoll_event> events, Duration duration) {
  const bool forever = duration == Duration::max();
  if (has_pwait2_) {
    const timespec timeout = to_timespec(duration);
    const int count = ::epoll_pwait2(epoll.get(), events.data(), static_cast<int>(events.size()),
                                     forever ? nullptr : &timeout, nullptr);
    // EPERM: seccomp profiles older than the system call.
    if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return count;
    has_pwait2_ = false;
  }
  return ::epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()),
                      forever ? -1 : to_millis_up(duration));
}

void RealLoop::wait(Duration duration, std::unique_lock<std::mutex>& turn) {
  const Time begun = now();
  if (begun - helped_at_ < kNapsFor) duration = std::min(duration, kNap);
  const bool sleeps = duration > Duration::zero();
  asleep_ = sleeps;
  asleep_until_ = after(begun, duration);
  was_helped_ = false;
  sleeps_outside_ = sleeps && outside_.ok() && begun - helped_at_ < kNapsFor;
  const bool outside = sleeps_outside_;
  running_ = false;
  if (sleeps) turn.unlock();
  int count = outside ? wait_outside(duration) : wait_on(epoll_, sleeps ? slept_ : events_, duration);
  int error = errno;
  if (sleeps) turn.lock();
  asleep_ = sleeps_outside_ = false;
  running_ = true;
  // After a stop (SIGSTOP, a debugger) many timers may be due at once. What has come meanwhile is seen before them, or
  // they would take peers and devices that have answered for silent.
  // The same where others took turns: what they have ended must not be told of any more.
  if (outside || was_helped_ || (count < 0 && error == EINTR)) {
    count = look();
    error = errno;
  } else if (sleeps && count > 0) {
    std::copy_n(slept_.begin(), count, events_.begin());
  }
  KVD_CHECK(count >= 0 || error == EINTR);
  const Time ended = now();
  ready_since_ = ended - begun > kSlept ? ended : looked_at_;
  turn_begun_ = looked_at_ = ended;
  events_at_ = 0;
  events_end_ = count > 0 ? static_cast<std::size_t>(count) : 0;
  const std::lock_guard lock(mutex_);
  waiting_ = false;
}

// Those that something has come from first: to send on takes long where it is a body, and what has come is mostly
// small.
std::size_t RealLoop::run_events() {
  std::size_t ran = 0;
  std::partition(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(events_end_),
                 [](const epoll_event& event) { return (event.events & EPOLLOUT) == 0; });
  while (events_at_ < events_end_) {
    const epoll_event& event = events_[events_at_++];
    if (event.data.ptr == this && !helping_) drain_wake();
    if (event.data.ptr == this || event.data.ptr == nullptr) continue;
    Watch& watch = *static_cast<Watch*>(event.data.ptr);
    if (interest(watch) == Watch::kNone) continue;
    std::uint32_t ready = 0;
    if ((event.events & EPOLLIN) != 0) ready |= Watch::kRead;
    if ((event.events & EPOLLOUT) != 0) ready |= Watch::kWrite;
    ready &= interest(watch);  // an earlier callback of this batch may have changed it
    if ((event.events & (EPOLLERR | EPOLLHUP)) != 0) ready = Watch::kRead | Watch::kWrite;
    if (ready == 0) continue;
    notify(watch, ready);
    ++ran;
  }
  events_at_ = events_end_ = 0;
  return ran;
}

std::size_t RealLoop::run_posted() {
  if (!has_posted_.load(std::memory_order_acquire)) return 0;
  {
    const std::lock_guard lock(mutex_);
    batch_.swap(posted_);
    has_posted_.store(false, std::memory_order_relaxed);
  }
  for (Callback& work : batch_) {
    work();
    work = nullptr;  // what it captured goes now, not when the whole batch is through
  }
  const std::size_t ran = batch_.size();
  batch_.clear();
  return ran;
}

Status RealLoop::control(int operation, Watch& watch) {
  epoll_event event{};
  event.events = to_epoll(interest(watch));
  event.data.ptr = &watch;
  if (::epoll_ctl(epoll_.get(), operation, watch.fd(), &event) != 0) {
    return fail(Code::kIo, "watch a descriptor", errno);
  }
  return {};
}

// Without interest the descriptor leaves the epoll set: a hang-up, which cannot be masked, would keep the loop awake.
Status RealLoop::watch_set(Watch& watch) {
  if (interest(watch) == Watch::kNone) return control(EPOLL_CTL_DEL, watch);
  const Status changed = control(EPOLL_CTL_MOD, watch);
  if (!changed && changed.error().sys_errno == ENOENT) return control(EPOLL_CTL_ADD, watch);
  return changed;
}

void RealLoop::watch_stop(Watch& watch) {
  // Fails when set(kNone) has removed it already.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, watch.fd(), nullptr);
  for (std::size_t i = events_at_; i < events_end_; ++i) {
    if (events_[i].data.ptr == &watch) events_[i].data.ptr = nullptr;
  }
}

void RealLoop::wake_up() noexcept {
  const std::uint64_t one = 1;
  ssize_t wrote = 0;
  do {
    wrote = ::write(wake_.get(), &one, sizeof one);
  } while (wrote < 0 && errno == EINTR);
  KVD_CHECK(wrote == sizeof one || errno == EAGAIN);  // EAGAIN: the counter is full, so the loop is being woken
}

void RealLoop::drain_wake() noexcept {
  std::uint64_t count = 0;
  const ssize_t got = ::read(wake_.get(), &count, sizeof count);
  KVD_CHECK(got == sizeof count || errno == EAGAIN || errno == EINTR);
}

Result<std::unique_ptr<Loop>> make_real_loop() {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.ok()) return fail(Code::kIo, "create an epoll descriptor", errno);
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.ok()) return fail(Code::kIo, "create an eventfd", errno);
  const int epoll_fd = epoll.get();
  const int wake_fd = wake.get();
  auto loop = std::make_unique<RealLoop>(std::move(epoll), std::move(wake));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = loop.get();
  if (::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, wake_fd, &event) != 0) {
    return fail(Code::kIo, "watch the loop's eventfd", errno);
  }
  return loop;
}

}  // namespace kvd::io
