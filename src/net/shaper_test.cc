#include "net/shaper.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include <gtest/gtest.h>

#include "io/sim/sim_loop.h"
#include "net/testing/peer.h"

namespace kvd::net {
namespace {

// Takes all it gets, for ever.
struct Greedy final : ShaperUser {
  explicit Greedy(Shaper& s, const void* share = nullptr) : shaper(s) { set_share(share); }
  void start() {
    if (const std::size_t bytes = shaper.ask(*this); bytes > 0) {
      shaper.spend(bytes);
      got += bytes;
      EXPECT_EQ(shaper.ask(*this), 0U);
    }
  }
  void on_tokens(std::size_t bytes) override {
    shaper.spend(bytes);
    got += bytes;
    ++slices;
    EXPECT_EQ(shaper.ask(*this), 0U);  // who is being served waits for its next turn
  }
  Shaper& shaper;
  std::size_t got = 0;
  std::size_t slices = 0;
};

class ShaperTest : public testing::Test {
 protected:
  io::SimClock clock_;
  io::SimLoop loop_{clock_};
};

TEST_F(ShaperTest, LetsItsRatePassAndAfterAPauseEightMilliseconds) {
  Shaper shaper(loop_, 50'000'000);
  loop_.run_for(std::chrono::seconds(1));
  Greedy user(shaper);
  user.start();
  EXPECT_EQ(user.got, 400'000U);
  loop_.run_for(Millis(100));
  EXPECT_LE(user.got, 5'400'000U);
  EXPECT_GE(user.got, 5'200'000U) << "a slice may be under way";
}

// Few wake-ups at low rates, little at once at high ones.
TEST_F(ShaperTest, GivesSlicesOfOneToFourMilliseconds) {
  constexpr std::uint64_t kSlices[][2] = {{100'000, 1'024},       {20'000'000, 80'000},   {50'000'000, 200'000},
                                          {100'000'000, 262'144}, {262'144'000, 262'144}, {1'000'000'000, 1'000'000}};
  for (const auto& [rate, bytes] : kSlices) {
    SCOPED_TRACE(rate);
    Shaper shaper(loop_, rate);
    Greedy user(shaper);
    user.start();
    loop_.run_for(Millis(100));
    EXPECT_GE(user.slices, 9U);
    EXPECT_EQ(user.got, user.slices * bytes);
  }
}

TEST_F(ShaperTest, KeepsFiveMillisecondsOrTwoSlices) {
  Shaper slowest(loop_, 1'000);
  Shaper slow(loop_, 50'000'000);
  Shaper fast(loop_, 1'000'000'000);
  loop_.run_for(std::chrono::seconds(5));
  Greedy a(slowest), b(slow), c(fast);
  for (Greedy* user : {&a, &b, &c}) user->start();
  EXPECT_EQ(a.got, 2'048U);
  EXPECT_EQ(b.got, 400'000U);
  EXPECT_EQ(c.got, 5'000'000U);
}

// A loop that is busy for as long as a slice costs nothing.
TEST_F(ShaperTest, ALateTurnLosesNothing) {
  Shaper shaper(loop_, 50'000'000);
  Greedy user(shaper);
  user.start();
  for (int i = 0; i < 100; ++i) {
    clock_.advance_to(after(clock_.now(), Millis(5)));
    loop_.settle();
  }
  EXPECT_GE(user.got, 24'800'000U);
}

TEST_F(ShaperTest, SharesFairly) {
  Shaper shaper(loop_, 20'000'000);
  Greedy a(shaper), b(shaper), c(shaper);
  for (Greedy* user : {&a, &b, &c}) user->start();
  loop_.run_for(Millis(200));
  EXPECT_GE(a.got + b.got + c.got, 3'900'000U);
  const auto [least, most] = std::minmax({a.got, b.got, c.got});
  EXPECT_LE(most - least, 80'000U);  // one slice
}

TEST_F(ShaperTest, SharesGetTheSameHoweverManyTheyAre) {
  Shaper shaper(loop_, 20'000'000);
  const int one = 1, other = 2;
  Greedy a(shaper, &one), b(shaper, &one), c(shaper, &one), x(shaper, &other);
  for (Greedy* user : {&a, &b, &c, &x}) user->start();
  loop_.run_for(Millis(200));
  EXPECT_GE(x.got, 1'800'000U);
  EXPECT_LE(x.got, a.got + b.got + c.got + 80'000U);  // one slice
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
  sender.send(wire::frame(header, wire::PutData{.checksums = wire::U64View(checksums)}, body.size()), body);
  ASSERT_TRUE(run_until(*loop, [&] { return receiver.received.size() == 1; }));
  EXPECT_TRUE(receiver.received[0].payload == body);
  EXPECT_GE(loop->now() - start, std::chrono::milliseconds(42));  // 1 MB at 20 MB/s, less the first 8 ms
}

}  // namespace
}  // namespace kvd::net
