// Encryption over a network that cuts, delays, silences and flips: bytes that come are the ones that were sent, in
// order and without a gap, or the stream ends.
#include <gtest/gtest.h>

#include "base/random.h"
#include "io/sim/sim_loop.h"
#include "io/sim/sim_net.h"
#include "tls/testing/certificates.h"
#include "tls/testing/pair.h"

namespace kvd::tls {
namespace {

struct Outcome {
  bool whole = false, cut = false;
};

class FaultyNet {
 public:
  FaultyNet(std::uint64_t seed, const std::shared_ptr<Context>& server, const std::shared_ptr<Context>& client)
      : random_(seed), net_(loop_, seed, model(seed)), server_context_(server), client_context_(client) {
    net_.listen("depot", [this](std::unique_ptr<io::Stream> stream) {
      if (server_ != nullptr) return;  // an arrival of the same connection a second time
      server_ = std::make_unique<End>(loop_, *server_context_->wrap(std::move(stream)));
    });
    net_.connect("depot", [this](Result<std::unique_ptr<io::Stream>> stream) {
      if (stream) client_ = std::make_unique<End>(loop_, *client_context_->wrap(std::move(*stream), "localhost"));
    });
  }

  Outcome run() {
    const auto there = bytes(1 + random_.next() % 400'000), back = bytes(1 + random_.next() % 400'000);
    for (int i = 0; i < 50'000 && !(server_ && client_); ++i)
      if (!loop_.run_once(std::chrono::minutes(2))) break;
    if (!server_ || !client_) return {.whole = false, .cut = true};
    client_->send(there);
    server_->send(back);
    const auto whole = [&] { return server_->got.size() == there.size() && client_->got.size() == back.size(); };
    for (int i = 0; i < 200'000 && !whole() && !(server_->why && client_->why); ++i)
      if (!loop_.run_once(std::chrono::minutes(2))) break;
    EXPECT_TRUE(is_prefix(server_->got, there));
    EXPECT_TRUE(is_prefix(client_->got, back));
    return {.whole = whole(), .cut = server_->why.has_value() || client_->why.has_value()};
  }
  void set_rates(const io::SimNetRates& rates) { net_.set_rates(rates); }
  [[nodiscard]] const io::SimNetCounters& counters() const { return net_.counters(); }

 private:
  static io::SimNetModel model(std::uint64_t seed) {
    io::SimNetModel model;
    model.segment_bytes_max = 1 + seed * 7919 % 20'000;
    model.window_bytes = (seed % 3 + 1) * 20'000;
    return model;
  }
  std::vector<std::byte> bytes(std::size_t count) {
    std::vector<std::byte> out(count);
    for (std::byte& byte : out) byte = static_cast<std::byte>(random_.next());
    return out;
  }
  static bool is_prefix(const std::vector<std::byte>& part, const std::vector<std::byte>& whole) {
    return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
  }

  Random random_;
  io::SimClock clock_;
  io::SimLoop loop_{clock_};
  io::SimNet net_;
  std::shared_ptr<Context> server_context_, client_context_;
  std::unique_ptr<End> server_, client_;
};

class TlsOverFaultyNet : public testing::Test {
 protected:
  Pki pki_;
  std::shared_ptr<Context> server_ = *Context::make_server(pki_.server_files(true));
  std::shared_ptr<Context> client_ = *Context::make_client(pki_.client_files(pki_.issue({.common_name = "engine"})));
};

TEST_F(TlsOverFaultyNet, AWrongBitEndsTheStreamAndIsNeverSeen) {
  std::uint64_t flipped = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    FaultyNet net(seed, server_, client_);
    net.set_rates({.flip = seed % 3 == 0 ? 200'000U : 30'000U});
    const Outcome outcome = net.run();
    flipped += net.counters().flipped;
    EXPECT_TRUE(outcome.whole || net.counters().flipped > 0) << "seed " << seed;
    EXPECT_TRUE(outcome.whole || outcome.cut) << "seed " << seed;
  }
  EXPECT_GT(flipped, 50U);
}

TEST_F(TlsOverFaultyNet, CutsAndPausesAndSilenceNeverMakeWrongBytes) {
  int whole = 0, cut = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    FaultyNet net(seed, server_, client_);
    net.set_rates({.repeat = 100'000, .cut = 5'000, .silence = 2'000, .pause = 50'000});
    const Outcome outcome = net.run();
    EXPECT_TRUE(outcome.whole || outcome.cut) << "seed " << seed;
    whole += outcome.whole ? 1 : 0;
    cut += outcome.cut ? 1 : 0;
  }
  EXPECT_GT(whole, 10);
  EXPECT_GT(cut, 10);
}

}  // namespace
}  // namespace kvd::tls
