#include "net/shaper.h"

#include <memory>

#include <gtest/gtest.h>

#include "net/testing/peer.h"

namespace kvd::net {
namespace {

// Takes all it gets, for ever.
struct Greedy final : ShaperUser {
  explicit Greedy(Shaper& s) : shaper(s) {}
  void on_tokens(std::size_t bytes) override {
    shaper.spend(bytes);
    got += bytes;
    EXPECT_EQ(shaper.ask(*this), 0U);  // who is being served waits for its next turn
  }
  Shaper& shaper;
  std::size_t got = 0;
};

TEST(Shaper, NeverLetsMoreThanItsRateAndFiveMillisecondsPass) {
  const auto loop = *io::make_real_loop();
  constexpr std::uint64_t kRate = 50'000'000;
  const Time start = loop->now();
  Shaper shaper(*loop, kRate);
  Greedy user(shaper);
  shaper.ask(user);
  ASSERT_TRUE(run_until(*loop, [&] { return user.got >= 1'000'000; }));
  const double seconds = std::chrono::duration<double>(loop->now() - start).count();
  EXPECT_LE(static_cast<double>(user.got), static_cast<double>(kRate) * (seconds + 0.005));
  shaper.leave(user);
}

TEST(Shaper, SharesFairly) {
  const auto loop = *io::make_real_loop();
  Shaper shaper(*loop, 20'000'000);
  Greedy a(shaper), b(shaper), c(shaper);
  for (Greedy* user : {&a, &b, &c}) shaper.ask(*user);
  ASSERT_TRUE(run_until(*loop, [&] { return a.got + b.got + c.got >= 900'000; }));
  const auto [least, most] = std::minmax({a.got, b.got, c.got});
  EXPECT_LE(most - least, 20'000U);  // one slice
}

TEST(Shaper, SlowsAConnectionDown) {
  const auto loop = *io::make_real_loop();
  constexpr std::uint64_t kRate = 20'000'000;
  Shaper shaper(*loop, kRate);
  auto [near, far] = make_socket_pair();
  ConnectionOptions options;
  options.shaper = &shaper;
  Peer sender(*loop, std::move(near), options);
  Peer receiver(*loop, std::move(far));
  const auto body = make_bytes(1'000'000, 1);
  const std::vector<std::uint64_t> checksums{1};
  const wire::Header header{.request_id = 1, .items = 1, .layer_first = 0, .layer_count = 1};
  const Time start = loop->now();
  sender.send(wire::frame(header, wire::PutData{wire::U64View(checksums)}, body.size()), body);
  ASSERT_TRUE(run_until(*loop, [&] { return receiver.received.size() == 1; }));
  EXPECT_TRUE(receiver.received[0].payload == body);
  EXPECT_GE(loop->now() - start, std::chrono::milliseconds(45));  // 1 MB at 20 MB/s, less the first 5 ms
}

}  // namespace
}  // namespace kvd::net
