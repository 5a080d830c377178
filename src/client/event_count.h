// EventCount: a number that one thread raises and others wait for, on a futex. The raising thread takes no lock and
// makes no system call unless somebody waits for it, so a waiter that loses its core never holds up the I/O thread.
//
// Waiters name what they wait for by a bit (`channel`), so that the end of an operation is what wakes a waiter for it,
// and its layers cost no system call. They can be called without a new value, too: to something that they may do
// meanwhile. Any thread may wait; reset() only while nobody raises.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/time.h"

namespace kvd::client {

class EventCount {
 public:
  static constexpr std::uint32_t kAllChannels = ~std::uint32_t{0};

  // Everything written before raise() is visible to who reads the new value. Values are below 2^31.
  [[nodiscard]] std::uint32_t value() const noexcept { return seen() & ~kCall; }
  // The value and whether somebody has called since, for wait().
  [[nodiscard]] std::uint32_t seen() const noexcept { return word_.load(std::memory_order_acquire); }
  void reset() noexcept {
    wanted_.store(0, std::memory_order_seq_cst);
    word_.store(0, std::memory_order_release);
  }

  // Sets the value and wakes waiters on any of `channels`. One raising thread at a time.
  void raise(std::uint32_t value, std::uint32_t channels) noexcept;
  // Wakes all waiters, and those that are about to sleep with what they have seen() before. The raising thread.
  void call() noexcept;

  // Sleeps until seen() is not `seen` any more or a wake-up on one of `channels` came, at most until `until` on
  // the monotonic clock. May return early; callers look again. False when the time is over.
  bool wait(std::uint32_t seen, std::uint32_t channels, Time until) noexcept;

 private:
  static constexpr std::uint32_t kCall = std::uint32_t{1} << 31;  // turns over with each call()

  std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> waiters_{0};
  std::atomic<std::uint32_t> wanted_{0};  // channels that somebody has waited for since reset()
};

// The monotonic clock that `until` above refers to: CLOCK_MONOTONIC, as the real loop.
Time monotonic_now() noexcept;

}  // namespace kvd::client
