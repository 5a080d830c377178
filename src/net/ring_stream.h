// RingStream: a stream on a unix socket whose bytes go through two rings in memory (net/ring.h) from a moment on that
// both ends agree upon. Until then it is the socket.
//
// Afterwards the socket carries no content: a byte on it, of any value, wakes an end that has said that it sleeps, and
// its end is the peer's. What the peer had written to its ring before it went is still received. A peer that breaks the
// indices ends the stream with kCorrupt; one that sends bytes for nothing is as one that sends requests without a
// pause.
//
// The loop looks at the rings by itself and, after bytes have moved, spins for a moment before it sleeps
// (Loop::expect).
#pragma once

#include <memory>
#include <optional>

#include "io/loop.h"
#include "io/stream.h"
#include "net/ring.h"

namespace kvd::net {

class RingStream final : public io::Stream, private io::Polled {
 public:
  enum class Side : std::uint8_t { kClient, kDepot };

  explicit RingStream(std::unique_ptr<io::Stream> socket);
  ~RingStream() override;

  // Receives and sends through the rings from now on. Once; requires start(). Not from inside receive() or send().
  void use(std::unique_ptr<RingMemory> memory, Side side);
  [[nodiscard]] bool uses_rings() const noexcept { return memory_ != nullptr; }

  Status start(io::Loop& loop, io::Watch::OnReady on_ready) override;
  Status want(std::uint32_t interest) override;
  Result<std::size_t> receive(std::span<const iovec> places, io::PrivateFd* descriptor) override;
  Result<std::size_t> send(std::span<const iovec> pieces, int descriptor) override;
  void end_sending() override { socket_->end_sending(); }
  void close() override;
  bool set_read_mark(std::size_t bytes) override { return memory_ == nullptr && socket_->set_read_mark(bytes); }
  [[nodiscard]] bool is_local() const noexcept override { return socket_->is_local(); }
  [[nodiscard]] int fd() const noexcept override { return socket_->fd(); }
  [[nodiscard]] int bare_socket() const noexcept override { return memory_ == nullptr ? socket_->bare_socket() : -1; }
  [[nodiscard]] bool is_secure() const noexcept override { return socket_->is_secure(); }
  [[nodiscard]] std::size_t unsent() const noexcept override { return socket_->unsent(); }
  [[nodiscard]] std::size_t untaken() const noexcept override { return memory_ == nullptr ? socket_->untaken() : 0; }
  [[nodiscard]] bool heard() const noexcept override { return socket_->heard(); }
  [[nodiscard]] const io::PeerCertificate* peer_certificate() const noexcept override {
    return socket_->peer_certificate();
  }
  [[nodiscard]] const char* refusal() const noexcept override { return socket_->refusal(); }
  Status judge_again() override { return socket_->judge_again(); }

 private:
  // io::Polled
  [[nodiscard]] bool ready() override { return readiness() != io::Watch::kNone; }
  void before_sleep() override;
  void after_sleep() override;
  void run() override;

  void on_socket(std::uint32_t ready);
  void wake_peer();
  [[nodiscard]] std::uint32_t readiness();

  const std::unique_ptr<io::Stream> socket_;
  io::Loop* loop_ = nullptr;
  io::Watch::OnReady on_ready_;
  std::unique_ptr<RingMemory> memory_;  // null: the socket carries the bytes
  std::optional<RingReader> reader_;
  std::optional<RingWriter> writer_;
  std::uint32_t interest_ = io::Watch::kRead;
  std::uint32_t announced_ = io::Watch::kNone;
  std::optional<Error> ended_;  // of the socket; kOk: the peer sends no more
  bool registered_ = false;
};

}  // namespace kvd::net
