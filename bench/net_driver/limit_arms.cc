#include "limit_arms.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdio>
#include <cstring>

#include "socket.h"

namespace kvd::bench {
namespace {

constexpr std::size_t kColdBytes = std::size_t{128} << 20;  // several times the caches

struct RawRequest {
  std::uint64_t record_bytes, count;
};

// False at the peer's end.
bool receive_all(const Socket& socket, std::span<std::byte> out) {
  while (!out.empty()) {
    std::array one{iovec{out.data(), out.size()}};
    const std::size_t got = socket.receive(one);
    if (got == 0) return false;
    out = out.subspan(got);
  }
  return true;
}

class RawArm final : public Arm {
 public:
  explicit RawArm(std::uint16_t port) : socket_(Socket::connect(port)) {}
  void use(Records& records) override { records_ = &records; }
  void send(What what, const Request& request) override {
    if (what != What::kGet) throw Error("the raw loop has no puts");
    const RawRequest raw{records_->bytes(), request.count};
    socket_.send_all(std::as_bytes(std::span(&raw, 1)));
  }
  void finish(What, const Request& request) override {
    for (std::uint32_t i = request.first; i < request.first + request.count; ++i) {
      if (!receive_all(socket_, records_->target(i))) throw Error("the raw server closed the connection");
    }
  }
  [[nodiscard]] bool fills_targets() const noexcept override { return false; }  // with something that nobody knows

 private:
  Socket socket_;
  Records* records_ = nullptr;
};

class MemcpyArm final : public Arm {
 public:
  void use(Records& records) override { records_ = &records; }
  void send(What what, const Request&) override {
    if (what != What::kGet) throw Error("memcpy has no puts");
  }
  void finish(What, const Request& request) override {
    for (std::uint32_t i = request.first; i < request.first + request.count; ++i)
      std::memcpy(records_->target(i).data(), records_->source(i).data(), records_->bytes());
  }

 private:
  Records* records_ = nullptr;
};

class Xxh3Arm final : public Arm {
 public:
  void use(Records& records) override { records_ = &records; }
  void send(What what, const Request&) override {
    if (what != What::kGet) throw Error("xxh3 has no puts");
  }
  void finish(What, const Request& request) override {
    for (std::uint32_t i = request.first; i < request.first + request.count; ++i)
      if (!records_->matches(i, records_->source(i))) throw Error("memory is damaged");
  }
  [[nodiscard]] bool fills_targets() const noexcept override { return false; }

 private:
  Records* records_ = nullptr;
};

void serve_one(const Socket& socket, std::span<const std::byte> cold) {
  std::size_t at = 0;
  RawRequest request{};
  while (receive_all(socket, std::as_writable_bytes(std::span(&request, 1)))) {
    if (request.record_bytes == 0 || request.record_bytes > cold.size()) throw Error("a request of no sense");
    for (std::uint64_t i = 0; i < request.count; ++i) {
      if (at + request.record_bytes > cold.size()) at = 0;
      socket.send_all(cold.subspan(at, request.record_bytes));
      at += request.record_bytes;
    }
  }
}

}  // namespace

int serve_raw() {
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
  for (;;) serve_one(Socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC)), cold);
}

std::unique_ptr<Arm> open_raw(std::uint16_t port) { return std::make_unique<RawArm>(port); }
std::unique_ptr<Arm> open_xxh3() { return std::make_unique<Xxh3Arm>(); }
std::unique_ptr<Arm> open_memcpy() { return std::make_unique<MemcpyArm>(); }

}  // namespace kvd::bench
