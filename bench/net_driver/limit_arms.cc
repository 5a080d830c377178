#include "limit_arms.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "raw_server.h"

namespace kvd::bench {
namespace {

class RawArm final : public Arm {
 public:
  explicit RawArm(std::uint16_t port) : socket_(Socket::connect(port)) {}
  void use(Records& records) override { records_ = &records; }
  void send(What what, const Request& request) override {
    RawRequest raw{records_->bytes(), request.count, what == What::kPut ? 1U : 0U};
    if (what == What::kGet) return socket_.send_all(std::as_bytes(std::span(&raw, 1)));
    pieces_.assign(1, {&raw, sizeof raw});
    hashes_.clear();
    hashes_.reserve(request.count * ((records_->bytes() + kRawSlabBytes - 1) / kRawSlabBytes));  // they do not move
    for (std::uint32_t i = request.first; i < request.first + request.count; ++i) add(records_->source(i));
    socket_.send_all(pieces_);
  }
  void finish(What what, const Request& request) override {
    std::byte taken{};
    for (std::uint32_t i = request.first; i < request.first + request.count; ++i) {
      const std::span<std::byte> answer = what == What::kPut ? std::span(&taken, 1) : records_->target(i);
      if (!receive_all(socket_, answer)) throw Error("the raw server closed the connection");
    }
  }
  [[nodiscard]] bool fills_targets() const noexcept override { return false; }  // with something that nobody knows

 private:
  void add(std::span<std::byte> record) {
    const std::size_t before = hashes_.size();
    for (std::size_t at = 0; at < record.size(); at += kRawSlabBytes)
      hashes_.push_back(hash_of(record.subspan(at, std::min(kRawSlabBytes, record.size() - at))));
    pieces_.push_back({hashes_.data() + before, (hashes_.size() - before) * sizeof hashes_[0]});
    pieces_.push_back({record.data(), record.size()});
  }

  Socket socket_;
  Records* records_ = nullptr;
  std::vector<std::uint64_t> hashes_;
  std::vector<iovec> pieces_;
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

}  // namespace

void serve_raw() {
  serve_records([](const Socket& socket) -> RawChannel {
    return {.receive_all = [&socket](std::span<std::byte> out) { return receive_all(socket, out); },
            .send_all = [&socket](std::span<const std::byte> bytes) { socket.send_all(bytes); }};
  });
}

std::unique_ptr<Arm> open_raw(std::uint16_t port) { return std::make_unique<RawArm>(port); }
std::unique_ptr<Arm> open_xxh3() { return std::make_unique<Xxh3Arm>(); }
std::unique_ptr<Arm> open_memcpy() { return std::make_unique<MemcpyArm>(); }

}  // namespace kvd::bench
