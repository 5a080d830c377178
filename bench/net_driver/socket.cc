#include "socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace kvd::bench {
namespace {

constexpr std::size_t kPieceBytesMax = std::size_t{1} << 20;  // as the depot's client receives at once

}  // namespace

Socket::Socket(int fd) : fd_(fd) {
  if (fd < 0) throw Error(std::string("no socket: ") + std::strerror(errno));
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  use_reno(fd);
}

void use_reno(int fd) {
  static constexpr std::string_view kReno = "reno";
  if (::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kReno.data(), kReno.size()) != 0)
    throw Error(std::string("take Reno: ") + std::strerror(errno));
}

Socket Socket::connect(std::uint16_t port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
    throw Error(std::string("connect: ") + std::strerror(errno));
  return socket;
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

void Socket::send_all(std::span<iovec> pieces) const {
  while (!pieces.empty()) {
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = std::min<std::size_t>(pieces.size(), 1024);
    const ssize_t sent = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) throw Error(std::string("send: ") + std::strerror(errno));
    auto left = static_cast<std::size_t>(sent);
    while (!pieces.empty() && left >= pieces.front().iov_len) {
      left -= pieces.front().iov_len;
      pieces = pieces.subspan(1);
    }
    if (left > 0) {
      pieces.front().iov_base = static_cast<std::byte*>(pieces.front().iov_base) + left;
      pieces.front().iov_len -= left;
    }
  }
}

void Socket::send_all(std::span<const std::byte> bytes) const {
  std::array one{iovec{const_cast<std::byte*>(bytes.data()), bytes.size()}};  // sendmsg only reads
  send_all(one);
}

std::size_t Socket::receive(std::span<iovec> pieces) const {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  for (;;) {
    const ssize_t got = ::recvmsg(fd_, &message, 0);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) throw Error(std::string("receive: ") + std::strerror(errno));
  }
}

void LineReader::fill() {
  if (at_ == end_) at_ = end_ = 0;
  if (end_ == ahead_.size()) throw Error("a line is too long");
  std::array one{iovec{ahead_.data() + end_, ahead_.size() - end_}};
  const std::size_t got = socket_.receive(one);
  if (got == 0) throw Error("the server closed the connection");
  end_ += got;
}

std::string_view LineReader::line() {
  for (;;) {
    const std::string_view have(ahead_.data() + at_, end_ - at_);
    if (const std::size_t stop = have.find("\r\n"); stop != std::string_view::npos) {
      at_ += stop + 2;
      return have.substr(0, stop);
    }
    if (at_ > 0) {  // the rest of a line that came in two parts
      std::memmove(ahead_.data(), ahead_.data() + at_, end_ - at_);
      end_ -= at_;
      at_ = 0;
    }
    fill();
  }
}

void LineReader::read(std::span<std::byte> out, ValueHash& hash) {
  const std::size_t have = std::min(out.size(), end_ - at_);
  std::memcpy(out.data(), ahead_.data() + at_, have);
  hash.add(out.first(have));
  at_ += have;
  out = out.subspan(have);
  while (!out.empty()) {
    at_ = end_ = 0;
    // No more than stays in the cache until it is hashed. Only behind the last piece there is something else.
    const std::size_t wanted = std::min(out.size(), kPieceBytesMax);
    std::array two{iovec{out.data(), wanted}, iovec{ahead_.data(), ahead_.size()}};
    const std::size_t pieces = wanted == out.size() ? 2 : 1;
    const std::size_t got = socket_.receive(std::span(two).first(pieces));
    if (got == 0) throw Error("the server closed the connection");
    const std::size_t placed = std::min(got, wanted);
    end_ = got - placed;
    hash.add(out.first(placed));
    out = out.subspan(placed);
  }
}

}  // namespace kvd::bench
