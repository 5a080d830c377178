// The server of a loop without a protocol: for each request of 24 bytes it sends as many records from memory that no
// cache holds, or takes them into such memory, each slab verified while it is in the cache, and answers each with a
// byte. What bytes go through, a socket or TLS, is its user's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "socket.h"

namespace kvd::bench {

struct RawRequest {
  std::uint64_t record_bytes, count, is_put;
};
// Of a put each record begins with the xxh3 of its slabs; the last one may be shorter.
inline constexpr std::size_t kRawSlabBytes = std::size_t{64} << 10;

// What a connection's bytes go through.
struct RawChannel {
  std::function<bool(std::span<std::byte>)> receive_all;  // false at the peer's end
  std::function<void(std::span<const std::byte>)> send_all;
};

// Says its port on stdout and serves one connection at a time, for ever. `open` makes a channel of a socket that
// outlives it. Throws Error.
[[noreturn]] void serve_records(const std::function<RawChannel(const Socket&)>& open);
// All of `out`; false at the peer's end.
bool receive_all(const Socket& socket, std::span<std::byte> out);

}  // namespace kvd::bench
