// Where a depot listens: "tcp://HOST:PORT", "tls://HOST:PORT" (the same, encrypted) or "unix:///ABSOLUTE/PATH". Plain
// values; resolve() may ask a name server.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvd::net {

struct Address {
  enum class Kind : std::uint8_t { kTcp, kUnix };
  Kind kind = Kind::kTcp;
  std::string host;        // TCP: name or number; IPv6 numbers without brackets
  std::uint16_t port = 0;  // TCP; 0 = the system chooses (listeners only)
  std::string path;        // unix: absolute, at most 107 bytes (sockaddr_un)
  bool tls = false;        // TCP, encrypted

  // "tcp://127.0.0.1:7070", "tcp://[::1]:7070", "unix:///run/kvdepot.sock", "tls://depot.example.net:7070".
  [[nodiscard]] std::string text() const;
};

// kInvalid says what is wrong with it.
Result<Address> parse_address(std::string_view text);

// A socket address ready for bind() or connect().
struct Endpoint {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] int family() const noexcept { return storage.ss_family; }
};

// Numbers and "localhost" resolve at once; other names through getaddrinfo(), which blocks. kNotFound.
Result<Endpoint> resolve(const Address& address);
// True for unix sockets, 127.0.0.0/8 and ::1: addresses that only this machine reaches.
bool is_loopback(const Endpoint& endpoint) noexcept;
// The host at the other end of a connected socket as a number, for logs; "this host" for a unix socket, "unknown" where
// the socket does not tell.
std::string peer_host(int socket);

}  // namespace kvd::net
