#include "io/timer_queue.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvd::io {

TimerQueue::~TimerQueue() { KVD_CHECK(heap_.empty()); }

void TimerQueue::arm(Timer& timer, Time at) {
  if (timer.armed_) disarm(timer);
  timer.at_ = std::max(at, fired_at_);
  timer.order_ = order_next_++;
  timer.armed_ = true;
  heap_.push_back(&timer);
  timer.slot_ = heap_.size() - 1;
  sift_up(timer.slot_);
}

void TimerQueue::disarm(Timer& timer) {
  if (!timer.armed_) return;
  const std::size_t slot = timer.slot_;
  KVD_CHECK(slot < heap_.size() && heap_[slot] == &timer);
  timer.armed_ = false;
  Timer* last = heap_.back();
  heap_.pop_back();
  if (last == &timer) return;
  place(last, slot);
  sift_up(slot);
  sift_down(last->slot_);
}

std::size_t TimerQueue::fire_due(Time now) {
  fired_at_ = std::max(fired_at_, now);
  const std::uint64_t order_end = order_next_;
  std::size_t fired = 0;
  while (!heap_.empty()) {
    Timer& timer = *heap_.front();
    // Timers armed by these callbacks are due at fired_at_ or later and have later orders: none is in front of an old
    // one.
    if (timer.at_ > now || timer.order_ >= order_end) break;
    disarm(timer);
    fire(timer);
    ++fired;
  }
  return fired;
}

void TimerQueue::fire(Timer& timer) {
  bool gone = false;
  timer.gone_ = &gone;
  Callback on_fire = std::move(timer.on_fire_);  // on the stack: the callback may destroy the timer
  on_fire();
  if (gone) return;
  timer.gone_ = nullptr;
  timer.on_fire_ = std::move(on_fire);
}

bool TimerQueue::before(const Timer& a, const Timer& b) noexcept {
  return a.at_ != b.at_ ? a.at_ < b.at_ : a.order_ < b.order_;
}

void TimerQueue::place(Timer* timer, std::size_t slot) noexcept {
  heap_[slot] = timer;
  timer->slot_ = slot;
}

void TimerQueue::sift_up(std::size_t slot) noexcept {
  Timer* timer = heap_[slot];
  while (slot > 0) {
    const std::size_t parent = (slot - 1) / 2;
    if (!before(*timer, *heap_[parent])) break;
    place(heap_[parent], slot);
    slot = parent;
  }
  place(timer, slot);
}

void TimerQueue::sift_down(std::size_t slot) noexcept {
  Timer* timer = heap_[slot];
  for (;;) {
    std::size_t child = 2 * slot + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && before(*heap_[child + 1], *heap_[child])) ++child;
    if (!before(*heap_[child], *timer)) break;
    place(heap_[child], slot);
    slot = child;
  }
  place(timer, slot);
}

}  // namespace kvd::io
