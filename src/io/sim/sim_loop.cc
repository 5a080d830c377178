#include "io/sim/sim_loop.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"

namespace kvd::io {

void SimClock::advance_to(Time at) {
  const Duration::rep to = at.time_since_epoch().count();
  if (to > now_.load(std::memory_order_relaxed)) now_.store(to, std::memory_order_relaxed);
}

void SimLoop::post(Callback work) {
  const std::lock_guard lock(mutex_);
  posted_.push_back(std::move(work));
}

void SimLoop::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
}

bool SimLoop::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

bool SimLoop::has_posted() const {
  const std::lock_guard lock(mutex_);
  return !posted_.empty();
}

bool SimLoop::run_once(Duration max_wait) {
  KVD_CHECK(!running_);
  running_ = true;
  poll_watches();
  if (ready_.empty() && !has_posted() && !stopped() && !polled_ready()) {
    const Time deadline = max_wait == Duration::max() ? kNever : after(now(), max_wait);
    const Time next = std::min(timers_.next(), deadline);
    KVD_CHECK(next != kNever);  // an endless wait for nothing: the test has lost a completion
    clock_.advance_to(next);
  }
  const std::size_t ran = run_ready() + run_polled() + run_posted() + timers_.fire_due(now());
  running_ = false;
  return ran > 0;
}

void SimLoop::settle() {
  while (run_once(Duration::zero())) {
  }
}

void SimLoop::run_for(Duration duration) {
  const Time end = after(now(), duration);
  while (now() < end && !stopped()) run_once(end - now());
  settle();
}

bool SimLoop::run_until(const std::function<bool()>& done, Duration limit) {
  const Time end = after(now(), limit);
  while (!done()) {
    const bool ran = run_once(end - now());
    if (!ran && (now() >= end || stopped())) return done();
  }
  return true;
}

Status SimLoop::watch_start(Watch& watch) {
  if (watch.fd() < 0) return fail(Code::kIo, "watch a descriptor", EBADF);
  watches_.push_back(&watch);
  return {};
}

Status SimLoop::watch_set(Watch&) { return {}; }

void SimLoop::watch_stop(Watch& watch) {
  std::erase(watches_, &watch);
  for (Ready& ready : ready_) {
    if (ready.watch == &watch) ready.watch = nullptr;
  }
}

void SimLoop::poll_watches() {
  std::vector<pollfd> fds;
  std::vector<Watch*> polled;
  for (Watch* watch : watches_) {
    if (interest(*watch) == Watch::kNone) continue;
    short events = 0;
    if ((interest(*watch) & Watch::kRead) != 0) events |= POLLIN;
    if ((interest(*watch) & Watch::kWrite) != 0) events |= POLLOUT;
    fds.push_back({.fd = watch->fd(), .events = events, .revents = 0});
    polled.push_back(watch);
  }
  if (fds.empty() || ::poll(fds.data(), fds.size(), 0) <= 0) return;
  for (std::size_t i = 0; i < fds.size(); ++i) {
    std::uint32_t bits = 0;
    if ((fds[i].revents & POLLIN) != 0) bits |= Watch::kRead;
    if ((fds[i].revents & POLLOUT) != 0) bits |= Watch::kWrite;
    if ((fds[i].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) bits = Watch::kRead | Watch::kWrite;
    if (bits != 0) ready_.push_back({polled[i], bits});
  }
}

std::size_t SimLoop::run_ready() {
  std::size_t ran = 0;
  for (std::size_t i = 0; i < ready_.size(); ++i) {  // callbacks clear entries, they do not add any
    if (ready_[i].watch == nullptr || interest(*ready_[i].watch) == Watch::kNone) continue;
    notify(*ready_[i].watch, ready_[i].bits);
    ++ran;
  }
  ready_.clear();
  return ran;
}

std::size_t SimLoop::run_posted() {
  std::vector<Callback> batch;
  {
    const std::lock_guard lock(mutex_);
    batch.swap(posted_);
  }
  for (Callback& work : batch) {
    work();
    work = nullptr;
  }
  return batch.size();
}

}  // namespace kvd::io
