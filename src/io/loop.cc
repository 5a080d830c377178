#include "io/loop.h"

#include <algorithm>

#include "base/check.h"

namespace kvd::io {

Timer::~Timer() {
  disarm();
  if (gone_ != nullptr) *gone_ = true;
}

void Timer::arm(Time at) { loop_.arm_timer(*this, at); }
void Timer::arm_in(Duration delay) { arm(after(loop_.now(), delay)); }

void Timer::disarm() {
  if (armed_) loop_.disarm_timer(*this);
}

Watch::~Watch() {
  stop();
  if (gone_ != nullptr) *gone_ = true;
}

Status Watch::start(int fd, std::uint32_t interest) {
  KVD_CHECK(fd_ < 0);  // one descriptor at a time: stop() first
  fd_ = fd;
  interest_ = interest;
  const Status status = loop_.watch_start(*this);
  if (!status) {
    fd_ = -1;
    interest_ = kNone;
  }
  return status;
}

Status Watch::set(std::uint32_t interest) {
  KVD_CHECK(fd_ >= 0);
  if (interest == interest_) return {};
  const std::uint32_t before = std::exchange(interest_, interest);
  const Status status = loop_.watch_set(*this);
  if (!status) interest_ = before;
  return status;
}

void Watch::stop() {
  if (fd_ < 0) return;
  loop_.watch_stop(*this);
  fd_ = -1;
  interest_ = kNone;
}

void Loop::run() {
  while (!stopped()) run_once(Duration::max());
}

void Loop::add(Polled& polled) { polled_.push_back(&polled); }

void Loop::remove(Polled& polled) {
  const auto found = std::ranges::find(polled_, &polled);
  if (found == polled_.end()) return;
  if (polling_) {
    *found = nullptr;
  } else {
    polled_.erase(found);
  }
}

bool Loop::polled_ready() {
  return std::ranges::any_of(polled_, [](Polled* polled) { return polled->ready(); });
}

bool Loop::before_sleep() {
  announced_ = true;
  for (Polled* polled : polled_) polled->before_sleep();
  return !polled_ready();
}

void Loop::after_sleep() {
  if (!std::exchange(announced_, false)) return;
  for (Polled* polled : polled_) polled->after_sleep();
}

std::size_t Loop::run_polled() {
  std::size_t ran = 0;
  polling_ = true;
  for (std::size_t i = 0; i < polled_.size(); ++i) {  // those that come meanwhile, too
    if (polled_[i] == nullptr || !polled_[i]->ready()) continue;
    polled_[i]->run();
    ++ran;
  }
  polling_ = false;
  std::erase(polled_, nullptr);
  return ran;
}

void Loop::notify(Watch& watch, std::uint32_t ready) {
  bool gone = false;
  watch.gone_ = &gone;
  Watch::OnReady on_ready = std::move(watch.on_ready_);  // on the stack: the callback may destroy the watch
  on_ready(ready);
  if (gone) return;
  watch.gone_ = nullptr;
  watch.on_ready_ = std::move(on_ready);
}

}  // namespace kvd::io
