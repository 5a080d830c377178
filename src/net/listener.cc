#include "net/listener.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "net/local_socket.h"
#include "net/pacing.h"

namespace kvd::net {
namespace {

constexpr int kBacklog = 128;
constexpr int kAcceptsPerTurn = 4;  // each makes a session, some 20 us
constexpr Duration kRest = std::chrono::milliseconds(100);

// Owns the name of a unix socket until the descriptor is closed.
Result<io::UniqueFd> lock_name(const Address& address) {
  const std::string path = address.path + ".lock";
  io::UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
  if (!lock.ok()) return fail(Code::kIo, "make the unix socket's lock file", errno);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno == EWOULDBLOCK) return fail(Code::kBusy, "somebody has taken this unix socket");
  return fail(Code::kIo, "lock the unix socket's name", errno);
}

// Makes room for a unix socket: removes a file that is a socket nobody listens on.
Status clear_path(const Address& address, const Endpoint& endpoint) {
  struct stat status{};
  if (::lstat(address.path.c_str(), &status) != 0) {
    if (errno == ENOENT) return {};
    return fail(Code::kIo, "look at the unix socket's path", errno);
  }
  if (!S_ISSOCK(status.st_mode)) return fail(Code::kInvalid, "the path holds a file that is not a socket");
  const io::UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!probe.ok()) return fail(Code::kIo, "make a socket", errno);
  if (::connect(probe.get(), endpoint.get(), endpoint.bytes) == 0 || errno != ECONNREFUSED) {
    return fail(Code::kBusy, "somebody listens on this unix socket");
  }
  if (::unlink(address.path.c_str()) != 0) return fail(Code::kIo, "remove a stale unix socket", errno);
  return {};
}

Error bind_error(int error) noexcept {
  if (error == EADDRINUSE) return {Code::kBusy, error, "the address is in use"};
  if (error == EADDRNOTAVAIL) return {Code::kInvalid, error, "the address is not one of this machine"};
  return {Code::kIo, error, "take the address"};
}

// What the socket is bound to: with the port that the system chose. Empty when it cannot be told.
Endpoint bound_to(int fd) noexcept {
  Endpoint endpoint;
  endpoint.bytes = sizeof endpoint.storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&endpoint.storage), &endpoint.bytes) != 0) return {};
  return endpoint;
}

std::uint16_t port_of(const Endpoint& tcp) noexcept {
  if (tcp.family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(tcp.storage).sin_port);
  return ntohs(reinterpret_cast<const sockaddr_in6&>(tcp.storage).sin6_port);
}

}  // namespace

Listener::Listener(io::Loop& loop, Address address, io::UniqueFd name_lock, io::UniqueFd socket)
    : address_(std::move(address)),
      name_lock_(std::move(name_lock)),
      socket_(std::move(socket)),
      watch_(loop, [this](std::uint32_t) { accept_some(); }),
      resume_(loop, [this] { static_cast<void>(watch_.set(io::Watch::kRead)); }) {}

Listener::~Listener() {
  struct stat status{};
  if (inode_ != 0 && ::lstat(address_.path.c_str(), &status) == 0 && status.st_ino == inode_) {
    ::unlink(address_.path.c_str());
  }
}

Result<std::unique_ptr<Listener>> Listener::bind(io::Loop& loop, const Address& address, Reach reach) {
  const Result<Endpoint> endpoint = resolve(address);
  if (!endpoint) return fail(endpoint.error());
  if (reach == Reach::kThisHost && !is_loopback(*endpoint)) {
    return fail(Code::kInvalid, "other machines could reach this address and nobody would have to show a token");
  }
  io::UniqueFd socket(::socket(endpoint->family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.ok()) return fail(Code::kIo, "make a socket", errno);
  const bool is_unix = address.kind == Address::Kind::kUnix;
  io::UniqueFd name_lock;
  if (is_unix) {
    Result<io::UniqueFd> locked = lock_name(address);
    if (!locked) return fail(locked.error());
    name_lock = std::move(*locked);
    if (const Status cleared = clear_path(address, *endpoint); !cleared) return fail(cleared.error());
    // The socket file is created with the mode of the socket itself: 0600 from its first moment.
    if (::fchmod(socket.get(), S_IRUSR | S_IWUSR) != 0) return fail(Code::kIo, "protect the unix socket", errno);
  } else {
    const int on = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // a restart need not wait for TIME_WAIT
    if (is_loopback(*endpoint)) do_not_pace(socket.get());
  }
  if (::bind(socket.get(), endpoint->get(), endpoint->bytes) != 0) return fail(bind_error(errno));
  std::unique_ptr<Listener> listener(new Listener(loop, address, std::move(name_lock), std::move(socket)));
  struct stat status{};
  if (is_unix && ::lstat(address.path.c_str(), &status) == 0) listener->inode_ = status.st_ino;
  if (!is_unix) listener->address_.port = port_of(bound_to(listener->socket_.get()));
  return listener;
}

Result<std::unique_ptr<Listener>> Listener::bind_local_socket(io::Loop& loop) const {
  const std::optional<Endpoint> endpoint = local_socket_of(bound_to(socket_.get()));
  if (!endpoint) return fail(Code::kIo, "no unix socket stands beside this address");
  io::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.ok()) return fail(Code::kIo, "make a socket", errno);
  if (::bind(socket.get(), endpoint->get(), endpoint->bytes) != 0) return fail(bind_error(errno));
  std::unique_ptr<Listener> listener(new Listener(loop, address_, {}, std::move(socket)));
  listener->same_user_only_ = true;
  return listener;
}

Status Listener::start(OnAccept on_accept) {
  on_accept_ = std::move(on_accept);
  if (::listen(socket_.get(), kBacklog) != 0) return fail(bind_error(errno));
  return watch_.start(socket_.get(), io::Watch::kRead);
}

void Listener::accept_some() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    io::UniqueFd accepted(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (accepted.ok()) {
      if (same_user_only_ && !is_same_user(accepted.get())) continue;
      on_accept_(std::move(accepted));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN) return;
    // No descriptors or memory: the waiting connection stays in the backlog; trying again at once would only spin.
    static_cast<void>(watch_.set(io::Watch::kNone));
    resume_.arm_in(kRest);
    return;
  }
}

}  // namespace kvd::net
