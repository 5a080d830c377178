#include "net/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <array>
#include <charconv>
#include <cstring>

namespace kvd::net {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kTls = "tls://";
constexpr std::string_view kUnix = "unix://";

Result<Address> parse_tcp(std::string_view rest, bool tls) {
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos) return fail(Code::kInvalid, "a port is missing: write tcp://HOST:PORT");
  std::string_view host = rest.substr(0, colon);
  const std::string_view port = rest.substr(colon + 1);
  const bool bracketed = host.starts_with('[') && host.ends_with(']') && host.size() > 2;
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty()) return fail(Code::kInvalid, "a host is missing: write tcp://HOST:PORT");
  if (bracketed != (host.find(':') != std::string_view::npos)) {
    return fail(Code::kInvalid, "brackets are for IPv6 numbers, which need them: write tcp://[::1]:PORT");
  }
  if (host.find_first_of(std::string_view("[]/\0", 4)) != std::string_view::npos) {
    return fail(Code::kInvalid, "a host has no brackets, slashes or zero bytes: write tcp://HOST:PORT");
  }
  Address address{.kind = Address::Kind::kTcp, .host = std::string(host), .port = 0, .path = {}, .tls = tls};
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc{} || end != port.data() + port.size()) {
    return fail(Code::kInvalid, "the port must be a number from 0 to 65535");
  }
  return address;
}

Endpoint make_endpoint(const void* address, std::size_t bytes) {
  Endpoint endpoint;
  std::memcpy(&endpoint.storage, address, bytes);
  endpoint.bytes = static_cast<socklen_t>(bytes);
  return endpoint;
}

Result<Endpoint> resolve_name(const Address& address) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.host.c_str(), nullptr, &hints, &found) != 0 || found == nullptr) {
    return fail(Code::kNotFound, "the host has no address");
  }
  Endpoint endpoint = make_endpoint(found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  if (endpoint.family() == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&endpoint.storage)->sin_port = htons(address.port);
  } else {
    reinterpret_cast<sockaddr_in6*>(&endpoint.storage)->sin6_port = htons(address.port);
  }
  return endpoint;
}

}  // namespace

std::string Address::text() const {
  if (kind == Kind::kUnix) return std::string(kUnix) + path;
  const bool v6 = host.find(':') != std::string::npos;
  return std::string(tls ? kTls : kTcp) + (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<Address> parse_address(std::string_view text) {
  if (text.starts_with(kTcp)) return parse_tcp(text.substr(kTcp.size()), false);
  if (text.starts_with(kTls)) return parse_tcp(text.substr(kTls.size()), true);
  if (!text.starts_with(kUnix)) {
    return fail(Code::kInvalid, "an address starts with tcp://, tls:// or unix://, as in tcp://127.0.0.1:7070");
  }
  const std::string_view path = text.substr(kUnix.size());
  if (!path.starts_with('/') || path.find('\0') != std::string_view::npos) {
    return fail(Code::kInvalid, "the path must be absolute: write unix:///PATH");
  }
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return fail(Code::kInvalid, "the path of a unix socket has at most 107 bytes");
  }
  return Address{.kind = Address::Kind::kUnix, .host = {}, .port = 0, .path = std::string(path), .tls = false};
}

Result<Endpoint> resolve(const Address& address) {
  if (address.kind == Address::Kind::kUnix) {
    sockaddr_un un{};
    un.sun_family = AF_UNIX;
    if (address.path.size() >= sizeof un.sun_path)
      return fail(Code::kInvalid, "the path of the unix socket is too long");
    std::memcpy(un.sun_path, address.path.data(), address.path.size());
    return make_endpoint(&un, sizeof un);
  }
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(address.port);
  const char* number = address.host == "localhost" ? "127.0.0.1" : address.host.c_str();
  if (::inet_pton(AF_INET, number, &v4.sin_addr) == 1) return make_endpoint(&v4, sizeof v4);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(address.port);
  if (::inet_pton(AF_INET6, number, &v6.sin6_addr) == 1) return make_endpoint(&v6, sizeof v6);
  return resolve_name(address);
}

bool is_loopback(const Endpoint& endpoint) noexcept {
  if (endpoint.family() == AF_UNIX) return true;
  if (endpoint.family() == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(endpoint.storage);
    return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
  }
  if (endpoint.family() != AF_INET6) return false;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(endpoint.storage);
  return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

std::string peer_host(int socket) {
  Endpoint peer;
  peer.bytes = sizeof peer.storage;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer.storage), &peer.bytes) != 0) return "unknown";
  if (peer.family() == AF_UNIX) return "this host";
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* const number =
      peer.family() == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(peer.storage).sin_addr)
          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(peer.storage).sin6_addr);
  const char* const shown = ::inet_ntop(peer.family(), number, text.data(), text.size());
  return shown == nullptr ? "unknown" : shown;
}

}  // namespace kvd::net
