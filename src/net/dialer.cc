#include "net/dialer.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "base/check.h"
#include "net/pacing.h"
#include "net/socket_stream.h"

namespace kvd::net {
namespace {

Error connect_error(int error) noexcept {
  switch (error) {
    case ECONNREFUSED:
    case ENOENT:
    case ECONNRESET:
    case ENETUNREACH:
    case EHOSTUNREACH:
    case EAGAIN:  // a unix listener whose backlog is full
      return {Code::kUnavailable, error, "connect to the depot"};
    case ETIMEDOUT: return {Code::kTimeout, error, "connect to the depot"};
    default: return {Code::kIo, error, "connect to the depot"};
  }
}

}  // namespace

SocketDialer::SocketDialer(io::Loop& loop)
    : watch_(loop, [this](std::uint32_t) { on_writable(); }), timer_(loop, [this] { on_timer(); }), loop_(loop) {}

void SocketDialer::connect(const Endpoint& endpoint, Time deadline, OnDone on_done) {
  KVD_CHECK(!busy());
  on_done_ = std::move(on_done);
  known_ = {};
  socket_.reset(::socket(endpoint.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket_.ok()) return know(Error{Code::kIo, errno, "make a socket"});
  if (endpoint.family() != AF_UNIX && is_loopback(endpoint)) do_not_pace(socket_.get());
  int connected = 0;
  do {
    connected = ::connect(socket_.get(), endpoint.get(), endpoint.bytes);
  } while (connected != 0 && errno == EINTR);
  if (connected == 0) return know(Error{Code::kOk, 0, ""});
  if (errno != EINPROGRESS) return know(connect_error(errno));
  if (const Status started = watch_.start(socket_.get(), io::Watch::kWrite); !started) return know(started.error());
  if (deadline != kNever) timer_.arm(deadline);
}

void SocketDialer::cancel() {
  watch_.stop();
  timer_.disarm();
  socket_.reset();
  on_done_ = nullptr;
}

// The result is known inside connect(), but told from the loop.
void SocketDialer::know(const Error& result) {
  known_ = result;
  is_known_ = true;
  timer_.arm(loop_.now());
}

void SocketDialer::on_timer() {
  if (!std::exchange(is_known_, false)) return finish(Error{Code::kTimeout, 0, "connect to the depot"});
  finish(known_);
}

void SocketDialer::on_writable() {
  int error = 0;
  socklen_t bytes = sizeof error;
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  finish(error == 0 ? Error{Code::kOk, 0, ""} : connect_error(error));
}

// The last thing done with this object: on_done may destroy it.
void SocketDialer::finish(const Error& result) {
  watch_.stop();
  timer_.disarm();
  io::UniqueFd socket = std::move(socket_);
  OnDone on_done = std::exchange(on_done_, nullptr);
  if (result.code == Code::kOk) return on_done(make_socket_stream(std::move(socket)));
  socket.reset();
  on_done(fail(result));
}

}  // namespace kvd::net
