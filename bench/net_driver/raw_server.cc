#include "raw_server.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

namespace kvd::bench {
namespace {

constexpr std::size_t kColdBytes = std::size_t{128} << 20;  // several times the caches

void take(const RawChannel& channel, std::span<std::byte> place) {
  std::vector<std::uint64_t> hashes((place.size() + kRawSlabBytes - 1) / kRawSlabBytes);
  if (!channel.receive_all(std::as_writable_bytes(std::span(hashes)))) throw Error("a record of hashes only");
  for (const std::uint64_t hash : hashes) {
    const auto slab = place.first(std::min(kRawSlabBytes, place.size()));
    if (!channel.receive_all(slab) || hash_of(slab) != hash) throw Error("a slab is damaged");
    place = place.subspan(slab.size());
  }
  constexpr std::byte kTaken{1};
  channel.send_all({&kTaken, 1});
}

void serve_one(const RawChannel& channel, std::span<std::byte> cold) {
  std::size_t at = 0;
  RawRequest request{};
  while (channel.receive_all(std::as_writable_bytes(std::span(&request, 1)))) {
    if (request.record_bytes == 0 || request.record_bytes > cold.size()) throw Error("a request of no sense");
    for (std::uint64_t i = 0; i < request.count; ++i) {
      if (at + request.record_bytes > cold.size()) at = 0;
      const auto place = cold.subspan(at, request.record_bytes);
      if (request.is_put != 0) {
        take(channel, place);
      } else {
        channel.send_all(place);
      }
      at += request.record_bytes;
    }
  }
}

}  // namespace

bool receive_all(const Socket& socket, std::span<std::byte> out) {
  while (!out.empty()) {
    std::array one{iovec{out.data(), out.size()}};
    const std::size_t got = socket.receive(one);
    if (got == 0) return false;
    out = out.subspan(got);
  }
  return true;
}

void serve_records(const std::function<RawChannel(const Socket&)>& open) {
  const Socket listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in here{};
  here.sin_family = AF_INET;
  here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof here;
  auto* const address = reinterpret_cast<sockaddr*>(&here);
  const bool listens = ::bind(listener.fd(), address, bytes) == 0 && ::listen(listener.fd(), 1) == 0 &&
                       ::getsockname(listener.fd(), address, &bytes) == 0;
  if (!listens) throw Error("the raw server can't listen");
  std::vector<std::byte> cold(kColdBytes);
  for (std::size_t i = 0; i < cold.size(); ++i) cold[i] = static_cast<std::byte>(i * 131 + i / 4096);
  std::printf("listening on port %u\n", unsigned{ntohs(here.sin_port)});
  std::fflush(stdout);
  for (;;) {
    const Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    serve_one(open(socket), cold);
  }
}

}  // namespace kvd::bench
