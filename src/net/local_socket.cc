#include "net/local_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include <fmt/format.h>

namespace kvd::net {
namespace {

// The kernel's name for a user that has none here: /proc/sys/kernel/overflowuid, whose default nobody changes.
constexpr uid_t kOverflowUid = 65534;

}  // namespace

std::optional<Endpoint> local_socket_of(const Endpoint& tcp) {
  if (tcp.family() == AF_UNIX || !is_loopback(tcp)) return std::nullopt;
  const bool v4 = tcp.family() == AF_INET;
  const auto& in4 = reinterpret_cast<const sockaddr_in&>(tcp.storage);
  const auto& in6 = reinterpret_cast<const sockaddr_in6&>(tcp.storage);
  const std::uint16_t port = ntohs(v4 ? in4.sin_port : in6.sin6_port);
  std::array<char, INET6_ADDRSTRLEN> host{};
  const void* const number = v4 ? static_cast<const void*>(&in4.sin_addr) : &in6.sin6_addr;
  if (port == 0 || ::inet_ntop(tcp.family(), number, host.data(), host.size()) == nullptr) return std::nullopt;
  const std::string name = fmt::format("kvdepot/{}/{}", host.data(), port);

  Endpoint endpoint;
  auto& un = reinterpret_cast<sockaddr_un&>(endpoint.storage);
  un.sun_family = AF_UNIX;
  // Behind a zero byte, which makes it abstract; its length is part of the name.
  std::ranges::copy(name, &un.sun_path[1]);
  endpoint.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return endpoint;
}

bool is_same_user(int fd) noexcept {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return false;
  return peer.uid != kOverflowUid && peer.uid == ::geteuid();
}

}  // namespace kvd::net
