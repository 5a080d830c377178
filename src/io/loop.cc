#include "io/loop.h"

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
