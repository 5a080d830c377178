// Dialer: connects a nonblocking socket on a loop, with a deadline. Used by the client; belongs to one loop.
#pragma once

#include <functional>

#include "io/fd.h"
#include "io/loop.h"
#include "net/address.h"

namespace kvd::net {

class Dialer {
 public:
  using OnDone = std::move_only_function<void(Result<io::UniqueFd>)>;

  explicit Dialer(io::Loop& loop);
  Dialer(const Dialer&) = delete;
  Dialer& operator=(const Dialer&) = delete;

  // Starts to connect; on_done comes from the loop exactly once, with a connected nonblocking socket or kUnavailable
  // (refused, no such path), kTimeout (at `deadline`) or kIo. Requires that no connect is under way. Destroying the
  // dialer, or cancel(), ends the attempt without on_done. on_done may destroy the dialer.
  void connect(const Endpoint& endpoint, Time deadline, OnDone on_done);
  void cancel();
  [[nodiscard]] bool busy() const noexcept { return on_done_ != nullptr; }

 private:
  void on_writable();
  void on_timer();
  void know(const Error& result);
  void finish(const Error& result);

  io::UniqueFd socket_;
  io::Watch watch_;
  io::Timer timer_;  // the deadline, or "at once" for a result that is known inside connect()
  io::Loop& loop_;
  OnDone on_done_;
  Error known_{};
  bool is_known_ = false;
};

}  // namespace kvd::net
