// Dialer: where a client gets connected streams from, with a deadline. Belongs to one loop. SocketDialer connects
// sockets; others put encryption above what a dialer brings, or connect within a simulation (net/testing).
#pragma once

#include <functional>
#include <memory>

#include "io/fd.h"
#include "io/loop.h"
#include "io/stream.h"
#include "net/address.h"

namespace kvd::net {

class Dialer {
 public:
  using OnDone = std::move_only_function<void(Result<std::unique_ptr<io::Stream>>)>;

  virtual ~Dialer() = default;

  // Starts to connect; on_done comes from the loop exactly once, with a stream that was not started yet or kUnavailable
  // (refused, no such path), kTimeout (at `deadline`) or kIo. Requires that no connect is under way. Destroying the
  // dialer, or cancel(), ends the attempt without on_done. on_done may destroy the dialer.
  virtual void connect(const Endpoint& endpoint, Time deadline, OnDone on_done) = 0;
  virtual void cancel() = 0;
  [[nodiscard]] virtual bool busy() const noexcept = 0;
};

// How a client is told to connect: called once for each of its connections. Empty = sockets.
using MakeDialer = std::function<std::unique_ptr<Dialer>(io::Loop&)>;

class SocketDialer final : public Dialer {
 public:
  explicit SocketDialer(io::Loop& loop);
  SocketDialer(const SocketDialer&) = delete;
  SocketDialer& operator=(const SocketDialer&) = delete;

  void connect(const Endpoint& endpoint, Time deadline, OnDone on_done) override;
  void cancel() override;
  [[nodiscard]] bool busy() const noexcept override { return on_done_ != nullptr; }

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
