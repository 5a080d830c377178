#include "net/socket_stream.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "base/check.h"
#include "net/address.h"
#include "net/descriptor.h"
#include "net/pacing.h"

namespace kvd::net {
namespace {

Error moving_error(int error, const char* what) noexcept {
  if (error == EAGAIN) return {Code::kBusy, 0, what};
  const bool gone = error == ECONNRESET || error == EPIPE || error == ETIMEDOUT;
  return {gone ? Code::kUnavailable : Code::kIo, error, what};
}

// For sockets of a listener on all addresses, which could not know their peers; better late than never (pacing.h).
void do_not_pace_loopback(int socket) noexcept {
  Endpoint peer;
  peer.bytes = sizeof peer.storage;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer.storage), &peer.bytes) != 0 || !is_loopback(peer)) return;
  do_not_pace(socket);
}

constexpr int kIdleSeconds = 30;   // until the kernel asks whether the peer is there
constexpr int kProbeSeconds = 10;  // between two questions
constexpr int kProbes = 3;         // unanswered: the end

// Fails on unix sockets, whose peers cannot vanish without a word.
void keep_alive(int fd) noexcept {
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kIdleSeconds, sizeof kIdleSeconds);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kProbeSeconds, sizeof kProbeSeconds);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof kProbes);
}

msghdr message_of(std::span<const iovec> pieces) noexcept {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());  // the system calls only read it
  message.msg_iovlen = pieces.size();
  return message;
}

}  // namespace

SocketStream::SocketStream(io::UniqueFd socket) : socket_(std::move(socket)) { KVD_CHECK(socket_.ok()); }

Status SocketStream::start(io::Loop& loop, io::Watch::OnReady on_ready) {
  const int on = 1;
  // Fails on unix sockets, which have nothing to delay.
  has_mark_ = ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0;
  if (has_mark_) do_not_pace_loopback(socket_.get());
  if (has_mark_) keep_alive(socket_.get());
  watch_.emplace(loop, std::move(on_ready));
  return watch_->start(socket_.get(), io::Watch::kRead);
}

Status SocketStream::want(std::uint32_t interest) {
  if (!socket_.ok()) return {};
  return watch_->set(interest);
}

Result<std::size_t> SocketStream::receive(std::span<const iovec> places, io::PrivateFd* descriptor) {
  msghdr message = message_of(places);
  DescriptorSpace space;
  if (descriptor != nullptr) expect_descriptor(message, space);
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return fail(moving_error(errno, "receive from the peer"));
  heard_ = heard_ || got > 0;
  if (descriptor != nullptr && message.msg_controllen > 0) *descriptor = io::PrivateFd(take_descriptor(message));
  return static_cast<std::size_t>(got);
}

Result<std::size_t> SocketStream::send(std::span<const iovec> pieces, int descriptor) {
  return send_to_socket(socket_.get(), pieces, descriptor);
}

void SocketStream::end_sending() { ::shutdown(socket_.get(), SHUT_WR); }

void SocketStream::close() {
  if (watch_) watch_->stop();
  socket_.reset();
}

bool SocketStream::set_read_mark(std::size_t bytes) {
  if (!has_mark_) return false;
  const auto mark = static_cast<int>(bytes);
  if (mark == mark_bytes_) return true;
  if (::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark) != 0) return false;
  mark_bytes_ = mark;
  return true;
}

std::size_t SocketStream::untaken() const noexcept {
  int bytes = 0;  // of a unix socket with the kernel's bookkeeping
  return ::ioctl(socket_.get(), SIOCOUTQ, &bytes) == 0 && bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
}

bool SocketStream::is_local() const noexcept {
  int domain = 0;
  socklen_t bytes = sizeof domain;
  return ::getsockopt(socket_.get(), SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_UNIX;
}

Result<std::size_t> send_to_socket(int socket, std::span<const iovec> pieces, int descriptor) {
  msghdr message = message_of(pieces);
  DescriptorSpace space;
  if (descriptor >= 0) attach_descriptor(message, space, descriptor);
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return fail(moving_error(errno, "send to the peer"));
  return static_cast<std::size_t>(sent);
}

std::unique_ptr<io::Stream> make_socket_stream(io::UniqueFd socket) {
  return std::make_unique<SocketStream>(std::move(socket));
}

}  // namespace kvd::net
