// Connections that ask without a pause, beside one that asks now and then and one that moves a body.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "io/sim/sim_loop.h"
#include "net/byte_connection.h"
#include "net/testing/peer.h"
#include "net/testing/roomy_stream.h"

namespace kvd::net {
namespace {

constexpr Duration kWork = std::chrono::microseconds(40);  // of a message
constexpr std::size_t kAtOnce = 3;                         // messages: the third ends behind 100 us
constexpr std::size_t kFlood = 5000;                       // messages: more than are read ahead

wire::Buffer ask() { return wire::frame({.request_id = 9}, wire::Ping{}); }

std::vector<std::byte> many(std::size_t messages) {
  const wire::Buffer one = ask();
  std::vector<std::byte> all;
  for (std::size_t i = 0; i < messages; ++i) all.insert(all.end(), one.begin(), one.end());
  return all;
}

// Bytes in; each call is work.
class WorkingHandler final : public ByteHandler {
 public:
  explicit WorkingHandler(io::SimClock& clock) : clock_(clock) {}
  std::size_t places(std::span<iovec> out) override {
    out[0] = {memory_.data(), memory_.size()};
    return 1;
  }
  Status landed(std::size_t) override {
    ++calls;
    clock_.advance_to(clock_.now() + kWork);
    return {};
  }
  [[nodiscard]] bool within() const override { return false; }
  [[nodiscard]] std::uint64_t finished() const override { return 0; }
  void on_drained() override {}
  void on_closed(const Error&) override {}
  std::size_t calls = 0;

 private:
  io::SimClock& clock_;
  std::array<std::byte, 16> memory_{};
};

class MessageLineTest : public testing::Test {
 protected:
  struct End {
    RoomyStream* stream;
    std::unique_ptr<Peer> peer;
    [[nodiscard]] std::size_t got() const { return peer->received.size(); }
  };
  End open(char who) {
    auto stream = std::make_unique<RoomyStream>(who, record_);
    RoomyStream* const roomy = stream.get();
    End end{roomy, std::make_unique<Peer>(loop_, std::move(stream),
                                          ConnectionOptions{.turns = &turns_, .messages = &messages_})};
    end.peer->on_request = [this] { clock_.advance_to(clock_.now() + kWork); };
    return end;
  }
  // So many that ask without a pause, of which each has had its first messages.
  std::vector<End> flood(std::size_t count) {
    std::vector<End> ends;
    for (std::size_t i = 0; i < count; ++i) {
      ends.push_back(open('f'));
      ends.back().stream->feed(many(kFlood));
    }
    turn();
    return ends;
  }
  static std::size_t all(const std::vector<End>& ends) {
    std::size_t messages = 0;
    for (const End& end : ends) messages += end.got();
    return messages;
  }
  void turn() { loop_.run_once(Duration::zero()); }

  io::SimClock clock_;
  io::SimLoop loop_{clock_};
  BodyTurns turns_{loop_};
  SliceLine messages_{loop_};
  RoomyStream::Record record_{.clock = clock_, .moves = {}, .call = {}};
};

TEST_F(MessageLineTest, OneOfThoseWhoAskWithoutAPauseGoesOnInATurn) {
  const std::vector<End> ends = flood(5);
  for (std::size_t turns = 0; turns < 50; ++turns) {
    const std::size_t before = all(ends);
    turn();
    EXPECT_EQ(all(ends) - before, kAtOnce) << "of one of them";
    const auto [least, most] = std::ranges::minmax_element(ends, {}, &End::got);
    EXPECT_LE(most->got() - least->got(), 2 * kAtOnce) << "in turn";
  }
  loop_.settle();
  for (const End& end : ends) EXPECT_EQ(end.got(), kFlood);
}

TEST_F(MessageLineTest, SharesTakeTurns) {
  const int one = 1, other = 2;
  std::vector<End> ends;
  for (std::size_t i = 0; i < 6; ++i) {
    ends.push_back(open('f'));
    ends.back().peer->connection->set_share(i < 5 ? &one : &other);
    ends.back().stream->feed(many(kFlood));
  }
  for (std::size_t turns = 0; turns < 60; ++turns) turn();
  EXPECT_NEAR(static_cast<double>(ends.back().got()), 30 * kAtOnce, 2 * kAtOnce);
}

TEST_F(MessageLineTest, WhoAsksNowAndThenIsAnsweredInTheSameTurn) {
  const std::vector<End> ends = flood(5);
  const End quiet = open('q');
  turn();
  for (std::size_t turns = 1; turns < 50; ++turns) {
    quiet.stream->feed(ask());
    const Time begun = loop_.now();
    turn();
    EXPECT_EQ(quiet.got(), turns);
    EXPECT_LE(loop_.now() - begun, (kAtOnce + 1) * kWork) << "beside one of the others";
  }
}

TEST_F(MessageLineTest, ABodyMovesInEachTurn) {
  const std::vector<End> ends = flood(5);
  const End pulls = open('p');
  constexpr std::size_t kBody = std::size_t{4} << 20;
  const std::vector<std::uint64_t> checksums{1};
  pulls.peer->send(wire::frame({.request_id = 1, .items = 1, .layer_first = 0, .layer_count = 1},
                               wire::PutData{.checksums = wire::U64View(checksums)}, kBody),
                   make_bytes(kBody, 1));
  const Time begun = loop_.now();
  const std::size_t turns = kBody / BodyTurns::kTurnBytes + 2;
  for (std::size_t i = 0; i < turns; ++i) turn();
  EXPECT_GT(pulls.stream->taken().size(), kBody);
  EXPECT_LE(loop_.now() - begun, turns * kAtOnce * kWork);
}

TEST_F(MessageLineTest, ALongMetaTakesManyTurns) {
  const End quiet = open('q');
  const End sends = open('s');
  turn();
  record_.call = kWork;
  const std::string text(std::size_t{4} << 20, 'x');
  sends.stream->feed(wire::frame({.request_id = 1}, wire::StatsReply{text.substr(64)}));
  for (std::size_t asked = 0; sends.got() == 0; ++asked) {
    quiet.stream->feed(ask());
    const Time begun = loop_.now();
    turn();
    EXPECT_EQ(quiet.got(), asked + 1);
    ASSERT_LE(loop_.now() - begun, (2 * kAtOnce + 2) * kWork) << "its readiness, and its place in the line";
  }
  EXPECT_EQ(sends.peer->received[0].meta.size(), text.size() - 64);
}

TEST_F(MessageLineTest, WhoClosesLeavesTheLine) {
  std::vector<End> ends = flood(3);
  ends[0].peer->connection->close({Code::kCancelled, 0, "a test"});
  ends[1] = open('n');
  const std::size_t before = ends[2].got();
  turn();
  turn();
  EXPECT_EQ(ends[2].got() - before, 2 * kAtOnce) << "it has the line for itself";
  loop_.settle();
  EXPECT_EQ(ends[2].got(), kFlood);
}

// Of Redis clients.
TEST_F(MessageLineTest, ConnectionsThatFrameThemselvesStandInTheSameLine) {
  const std::vector<End> ends = flood(3);
  WorkingHandler handler(clock_);
  auto stream = std::make_unique<RoomyStream>('r', record_);
  RoomyStream* const raw = stream.get();
  ByteConnection connection(loop_, handler, ends[0].peer->counters, std::move(stream), {.messages = &messages_});
  ASSERT_TRUE(connection.start());
  raw->feed(make_bytes(16 * kFlood, 1));
  turn();
  EXPECT_EQ(handler.calls, kAtOnce);
  for (std::size_t turns = 0; turns < 50; ++turns) {
    const std::size_t before = all(ends) + handler.calls;
    turn();
    EXPECT_EQ(all(ends) + handler.calls - before, kAtOnce);
  }
  EXPECT_GT(handler.calls, 10 * kAtOnce);
  const int other = 2;
  connection.set_share(&other);
  const std::size_t before = handler.calls;
  for (std::size_t turns = 0; turns < 20; ++turns) turn();
  EXPECT_NEAR(static_cast<double>(handler.calls - before), 10 * kAtOnce, kAtOnce) << "the other share's";
  loop_.settle();
  EXPECT_EQ(handler.calls, kFlood);
}

}  // namespace
}  // namespace kvd::net
