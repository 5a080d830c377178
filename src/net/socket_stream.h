// SocketStream: the stream of a connected nonblocking socket, TCP or unix. One virtual call for each system call.
//
// A host that is gone without a word leaves connections on which nothing ever comes. The kernel asks on those that have
// been idle for 30 s, three times ten seconds apart: a minute after the last byte they end with kUnavailable. So a
// depot keeps no connections, leases or pins of clients that are gone.
#pragma once

#include <memory>
#include <optional>

#include "io/stream.h"

namespace kvd::net {

class SocketStream final : public io::Stream {
 public:
  // Requires a connected nonblocking stream socket. TCP: start() sets TCP_NODELAY and keep-alive and, towards
  // loopback, takes a congestion control that does not pace.
  explicit SocketStream(io::UniqueFd socket);

  Status start(io::Loop& loop, io::Watch::OnReady on_ready) override;
  Status want(std::uint32_t interest) override;
  Result<std::size_t> receive(std::span<const iovec> places, io::PrivateFd* descriptor) override;
  Result<std::size_t> send(std::span<const iovec> pieces, int descriptor) override;
  void end_sending() override;
  void close() override;
  bool set_read_mark(std::size_t bytes) override;
  [[nodiscard]] bool is_local() const noexcept override;
  [[nodiscard]] int fd() const noexcept override { return socket_.get(); }
  [[nodiscard]] int bare_socket() const noexcept override { return socket_.get(); }
  [[nodiscard]] std::size_t untaken() const noexcept override;
  [[nodiscard]] bool heard() const noexcept override { return heard_; }

 private:
  io::PrivateFd socket_;  // or a forked child would keep the peer from seeing its end
  std::optional<io::Watch> watch_;
  bool has_mark_ = false;  // TCP. A unix socket takes such a mark and ignores it
  int mark_bytes_ = 1;
  bool heard_ = false;
};

// What SocketStream::send() does; on any thread.
Result<std::size_t> send_to_socket(int socket, std::span<const iovec> pieces, int descriptor = -1);

// The same as a stream of any kind.
std::unique_ptr<io::Stream> make_socket_stream(io::UniqueFd socket);

}  // namespace kvd::net
