// Blocking loopback sockets for the arms that speak to their server themselves. Errors are thrown.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "arm.h"

namespace kvd::bench {

// The congestion control that the depot and its client take towards loopback, where some choices of a system pace what
// they send. Throws where it can't be had, as then the sides would not be equal.
void use_reno(int fd);

// Owns the descriptor. Nagle's delay is off, its congestion control is Reno; connections of a listener have both, too.
class Socket {
 public:
  explicit Socket(int fd);
  static Socket connect(std::uint16_t port);  // to 127.0.0.1
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&&) = delete;
  [[nodiscard]] int fd() const noexcept { return fd_; }

  // All of it, in as few calls as the kernel makes possible.
  void send_all(std::span<iovec> pieces) const;
  void send_all(std::span<const std::byte> bytes) const;
  // One call; 0 at the peer's end.
  [[nodiscard]] std::size_t receive(std::span<iovec> pieces) const;

 private:
  int fd_;
};

// Reads answers that are lines with bytes between them: bytes go straight to their place, and what one call brings
// beyond them is kept for the next line.
class LineReader {
 public:
  explicit LineReader(const Socket& socket) : socket_(socket), ahead_(std::size_t{16} << 10) {}
  // The next line without its end; valid until the next call.
  std::string_view line();
  // The bytes behind it, hashed as they come: a second pass over a large value would find it out of the cache.
  void read(std::span<std::byte> out, ValueHash& hash);

 private:
  void fill();
  const Socket& socket_;
  std::vector<char> ahead_;
  std::size_t at_ = 0, end_ = 0;
};

}  // namespace kvd::bench
