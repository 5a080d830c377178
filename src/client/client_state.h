// ClientState: what callers learn about the I/O thread's work without asking it: whether requests are taken at all,
// counters, and why there is no connection. Written by the I/O thread (those that are shared by callers, too).
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>

#include "base/metric.h"
#include "base/result.h"
#include "client/get_flow.h"
#include "net/counters.h"

namespace kvd::client {

class ClientState {
 public:
  SharedCounter requests, busy;
  Counter completed, failed, timeouts, cancelled, bytes_stored, reconnects, breaker_opened;
  GetCounters get;
  net::NetCounters net;

  [[nodiscard]] bool connected() const noexcept { return connected_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool breaker_open() const noexcept { return breaker_open_.load(std::memory_order_relaxed); }

  void set_breaker_open(bool open) noexcept { breaker_open_.store(open, std::memory_order_relaxed); }
  void set_connected(bool connected) {
    {
      const std::lock_guard lock(mutex_);
      connected_.store(connected, std::memory_order_relaxed);
      if (connected) error_ = {Code::kOk, 0, ""};
    }
    changed_.notify_all();
  }
  void set_error(const Error& error) {
    {
      const std::lock_guard lock(mutex_);
      error_ = error;
    }
    changed_.notify_all();
  }

  // The depot has refused something; `why` is its reason.
  void set_refusal(Code code, std::string_view why) {
    std::string text(code_name(code));
    if (!why.empty()) text.append(": ").append(why);
    const std::lock_guard lock(mutex_);
    refusal_ = std::move(text);
  }
  [[nodiscard]] std::string refusal() const {
    const std::lock_guard lock(mutex_);
    return refusal_;
  }

  // Why the last connection or attempt ended; code kOk while all is well.
  [[nodiscard]] Error error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  // Waits until there is a connection, until it is clear that there cannot be one, or until `timeout` has passed.
  Status wait_connected(Duration timeout) {
    std::unique_lock lock(mutex_);
    const auto hopeless = [this] { return error_.code == Code::kInvalid || error_.code == Code::kStale; };
    changed_.wait_for(lock, timeout, [&] { return connected() || hopeless(); });
    if (connected()) return {};
    if (hopeless()) return fail(error_);
    const bool known = error_.code != Code::kOk;
    return fail(Code::kUnavailable, known ? error_.what : "connect to the depot", known ? error_.sys_errno : 0);
  }

 private:
  std::atomic<bool> connected_{false};
  std::atomic<bool> breaker_open_{false};
  mutable std::mutex mutex_;  // guards error_, refusal_ and the waiting; never held while bytes move
  std::condition_variable changed_;
  Error error_{Code::kOk, 0, ""};
  std::string refusal_;
};

}  // namespace kvd::client
