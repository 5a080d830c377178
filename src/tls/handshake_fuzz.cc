// Arbitrary bytes against a depot's and a client's handshake. The first byte chooses the side and how the rest is cut
// into pieces. Nothing may come out but an end.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/check.h"
#include "io/sim/sim_loop.h"
#include "tls/stream.h"
#include "tls/testing/certificates.h"

namespace {

using namespace kvd;

// What a fuzzer's bytes come from; takes whatever is sent.
class FuzzedStream final : public io::Stream {
 public:
  FuzzedStream(Bytes bytes, std::size_t step) : bytes_(bytes), step_(step) {}
  Status start(io::Loop& loop, io::Watch::OnReady on_ready) override {
    on_ready_ = std::move(on_ready);
    timer_.emplace(loop, [this] {
      on_ready_(io::Watch::kRead);
      if (!closed_) timer_->arm_in(std::chrono::milliseconds(1));
    });
    timer_->arm(loop.now());
    return {};
  }
  Status want(std::uint32_t) override { return {}; }
  Result<std::size_t> receive(std::span<const iovec> places, io::PrivateFd*) override {
    const std::size_t n = std::min({step_, bytes_.size(), places.front().iov_len});
    std::copy_n(bytes_.begin(), n, static_cast<std::byte*>(places.front().iov_base));
    bytes_ = bytes_.subspan(n);
    return n;
  }
  Result<std::size_t> send(std::span<const iovec> pieces, int) override { return pieces.front().iov_len; }
  void end_sending() override {}
  void close() override {
    closed_ = true;
    timer_->disarm();
  }
  bool set_read_mark(std::size_t) override { return false; }
  [[nodiscard]] bool is_local() const noexcept override { return false; }
  [[nodiscard]] int fd() const noexcept override { return -1; }

 private:
  Bytes bytes_;
  const std::size_t step_;
  io::Watch::OnReady on_ready_;
  std::optional<io::Timer> timer_;
  bool closed_ = false;
};

struct Sides {
  tls::Pki pki;
  std::shared_ptr<tls::Context> server = *tls::Context::make_server(pki.server_files(true));
  std::shared_ptr<tls::Context> client =
      *tls::Context::make_client(pki.client_files(pki.issue({.common_name = "engine"})));
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const Sides sides;
  const bool server = (data[0] & 1) != 0;
  const std::size_t step = std::size_t{1} << (data[0] >> 4);
  io::SimClock clock;
  io::SimLoop loop(clock);
  auto stream = *(server ? sides.server : sides.client)
                     ->wrap(std::make_unique<FuzzedStream>(std::as_bytes(std::span(data + 1, size - 1)), step),
                            server ? "" : "localhost");
  bool over = false;
  const auto on_ready = [&](std::uint32_t) {
    std::array<std::byte, 512> bytes;
    const iovec place{bytes.data(), bytes.size()};
    const auto received = stream->receive({&place, 1}, nullptr);
    KVD_CHECK(!received);  // nobody without the keys makes data, or a goodbye
    if (received.error().code == Code::kBusy) return;
    over = true;
    stream->close();
  };
  KVD_CHECK(stream->start(loop, on_ready).has_value());
  const Time began = loop.now();
  while (!over && loop.now() - began < std::chrono::seconds(10)) loop.run_once(std::chrono::seconds(1));
  KVD_CHECK(over);
  KVD_CHECK(stream->peer_certificate() == nullptr);
  return 0;
}
