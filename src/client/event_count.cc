#include "client/event_count.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

namespace kvd::client {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t), "a futex word is 32 bits");

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* until,
           std::uint32_t channels) noexcept {
  return ::syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, until, nullptr, channels);
}

}  // namespace

void EventCount::raise(std::uint32_t value, std::uint32_t channels) noexcept {
  // Sequentially consistent against wait(): either the waiter sees the new value or we see the waiter.
  word_.store(value | (word_.load(std::memory_order_relaxed) & kCall), std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) == 0) return;
  // What goes to all channels wakes also those whose bits a reset() has taken away.
  const bool wanted = channels == kAllChannels || (wanted_.load(std::memory_order_seq_cst) & channels) != 0;
  if (wanted) futex(word_, FUTEX_WAKE_BITSET, INT_MAX, nullptr, channels);
}

void EventCount::call() noexcept {
  word_.store(word_.load(std::memory_order_relaxed) ^ kCall, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) == 0) return;
  futex(word_, FUTEX_WAKE_BITSET, INT_MAX, nullptr, kAllChannels);
}

bool EventCount::wait(std::uint32_t seen, std::uint32_t channels, Time until) noexcept {
  timespec deadline{};
  if (until != kNever) {
    const auto since = until.time_since_epoch();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
    deadline = {.tv_sec = seconds.count(), .tv_nsec = (since - seconds).count()};
  }
  wanted_.fetch_or(channels, std::memory_order_seq_cst);
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  bool in_time = true;
  if (word_.load(std::memory_order_seq_cst) == seen) {
    const long rc = futex(word_, FUTEX_WAIT_BITSET, seen, until == kNever ? nullptr : &deadline, channels);
    in_time = rc == 0 || errno != ETIMEDOUT;
  }
  waiters_.fetch_sub(1, std::memory_order_seq_cst);
  return in_time;
}

Time monotonic_now() noexcept {
  timespec ts{};
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return Time(std::chrono::seconds(ts.tv_sec) + std::chrono::nanoseconds(ts.tv_nsec));
}

}  // namespace kvd::client
