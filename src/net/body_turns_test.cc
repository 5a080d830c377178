#include "net/body_turns.h"

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

constexpr std::size_t kTurnSlice = BodyTurns::kSliceBytes;
constexpr std::size_t kTurnBody = std::size_t{2} << 20;
constexpr std::size_t kTurnHead = 200;  // at most

wire::Buffer turn_frame(std::size_t payload_bytes) {
  const std::vector<std::uint64_t> checksums{1};
  return wire::frame({.request_id = 1, .items = 1, .layer_first = 0, .layer_count = 1},
                     wire::PutData{.checksums = wire::U64View(checksums)}, payload_bytes);
}

wire::Buffer turn_ping() { return wire::frame({.request_id = 9}, wire::Ping{}); }

// A protocol without any: bytes in, bytes out.
class RawHandler final : public ByteHandler {
 public:
  explicit RawHandler(std::size_t bytes) : memory_(bytes) {}
  std::size_t places(std::span<iovec> out) override {
    out[0] = {memory_.data(), memory_.size()};
    return 1;
  }
  Status landed(std::size_t bytes) override {
    got += bytes;
    return {};
  }
  [[nodiscard]] bool within() const override { return false; }
  [[nodiscard]] std::uint64_t finished() const override { return 0; }
  void on_drained() override {}
  void on_closed(const Error&) override {}
  std::size_t got = 0;

 private:
  std::vector<std::byte> memory_;
};

class BodyTurnsTest : public testing::Test {
 protected:
  struct End {
    RoomyStream* stream;
    std::unique_ptr<Peer> peer;
  };
  End open(char who) {
    auto stream = std::make_unique<RoomyStream>(who, record_);
    RoomyStream* const roomy = stream.get();
    return {roomy, std::make_unique<Peer>(loop_, std::move(stream), ConnectionOptions{.turns = &turns_})};
  }
  // Something small has come from each, so that none is alone.
  void talk(std::initializer_list<End*> ends) {
    for (End* const end : ends) end->stream->feed(turn_ping());
    loop_.settle();
    record_.moves.clear();
  }
  void turn() { loop_.run_once(Duration::zero()); }
  [[nodiscard]] std::size_t moved(char who, bool out = true) const {
    std::size_t bytes = 0;
    for (const Move& move : record_.moves) bytes += move.who == who && move.out == out ? move.bytes : 0;
    return bytes;
  }

  io::SimClock clock_;
  io::SimLoop loop_{clock_};
  BodyTurns turns_{loop_};
  RoomyStream::Record record_{.clock = clock_, .moves = {}, .call = {}};
};

TEST_F(BodyTurnsTest, OneConnectionAloneWaitsForNoTurn) {
  End a = open('a');
  a.peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  EXPECT_GT(moved('a'), kTurnBody) << "sent at once";
  EXPECT_EQ(record_.moves.size(), 1U);
  a.stream->feed(turn_frame(kTurnBody));
  a.stream->feed(make_bytes(kTurnBody, 2));
  turn();
  ASSERT_EQ(a.peer->received.size(), 1U) << "received in one turn";
  EXPECT_EQ(a.peer->received[0].payload, make_bytes(kTurnBody, 2));
}

TEST_F(BodyTurnsTest, BodiesOfSeveralTakeTurnsOfOneLength) {
  End a = open('a'), b = open('b'), c = open('c');
  talk({&a, &b, &c});
  for (End* const end : {&a, &b, &c}) end->peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  EXPECT_TRUE(record_.moves.empty()) << "neither bodies nor their heads";
  for (std::size_t last = 0; moved('c') < kTurnBody;) {
    turn();
    const auto [least, most] = std::minmax({moved('a'), moved('b'), moved('c')});
    EXPECT_LE(most - least, kTurnSlice + kTurnHead);
    const std::size_t all = moved('a') + moved('b') + moved('c');
    EXPECT_LE(all - last, BodyTurns::kTurnBytes + 3 * kTurnHead) << "a turn has an end";
    ASSERT_GT(all, last);
    last = all;
  }
  loop_.settle();
  wire::Buffer whole = turn_frame(kTurnBody);
  const auto body = make_bytes(kTurnBody, 1);
  whole.insert(whole.end(), body.begin(), body.end());
  for (const End* const end : {&a, &b, &c}) EXPECT_TRUE(end->stream->taken() == whole);
}

TEST_F(BodyTurnsTest, WhatIsSmallIsAnsweredBeforeBodiesGoOn) {
  End a = open('a'), b = open('b'), c = open('c');
  talk({&a, &b, &c});
  a.peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  b.peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  c.peer->on_request = [&] { c.peer->send(turn_ping()); };
  turn();
  for (int i = 0; i < 3; ++i) {
    record_.moves.clear();
    c.stream->feed(turn_ping());
    turn();
    ASSERT_GE(record_.moves.size(), 4U);
    EXPECT_EQ(record_.moves[0].who, 'c');
    EXPECT_FALSE(record_.moves[0].out);
    EXPECT_EQ(record_.moves[1].who, 'c');
    EXPECT_TRUE(record_.moves[1].out) << "before the bodies of this turn";
    EXPECT_GT(moved('a') + moved('b'), 0U) << "which have their turn all the same";
  }
  record_.moves.clear();
  c.peer->send(turn_frame(BodyTurns::kSmallBytes), make_bytes(BodyTurns::kSmallBytes, 3));
  EXPECT_GT(moved('c'), BodyTurns::kSmallBytes) << "a small body waits for none";
}

TEST_F(BodyTurnsTest, WhatComesInTakesTurnsWithWhatGoesOut) {
  End a = open('a'), b = open('b'), c = open('c');
  talk({&a, &b, &c});
  for (End* const end : {&a, &b}) {
    end->stream->feed(turn_frame(kTurnBody));
    end->stream->feed(make_bytes(kTurnBody, 2));
  }
  c.peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  while (c.stream->taken().size() < kTurnBody) {
    turn();
    const auto [least, most] = std::minmax({moved('a', false), moved('b', false), moved('c')});
    ASSERT_LE(most - least, kTurnSlice + (std::size_t{16} << 10)) << "and a read-ahead";
  }
  loop_.run_for(Millis(1));
  for (const End* const end : {&a, &b}) {
    ASSERT_EQ(end->peer->received.size(), 2U);
    EXPECT_EQ(end->peer->received[1].payload, make_bytes(kTurnBody, 2));
  }
}

TEST_F(BodyTurnsTest, ATurnEndsByItsTimeAndNobodyIsLeftOut) {
  End a = open('a'), b = open('b'), c = open('c');
  talk({&a, &b, &c});
  record_.call = BodyTurns::kTurnTime;
  for (End* const end : {&a, &b, &c}) end->peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  for (std::size_t calls = 1; calls <= 12; ++calls) {
    turn();
    EXPECT_EQ(record_.moves.size(), calls) << "a slice takes all of it";
  }
  for (const char who : {'a', 'b', 'c'}) EXPECT_EQ(std::ranges::count(record_.moves, who, &Move::who), 4) << who;
}

TEST_F(BodyTurnsTest, SlowCallsEndASliceToo) {
  End a = open('a'), b = open('b');
  talk({&a, &b});
  record_.call = BodyTurns::kTurnTime;
  const auto bytes = make_bytes(100, 1);
  const std::vector<Bytes> pieces(4096, Bytes(bytes));  // of which one call takes 1,024
  a.peer->connection->send({.head = turn_frame(pieces.size() * bytes.size()), .body = pieces, .on_done = {}});
  a.peer->connection->flush();
  for (std::size_t calls = 1; calls <= 3; ++calls) {  // what is left behind is small
    turn();
    EXPECT_EQ(record_.moves.size(), calls);
  }
}

TEST_F(BodyTurnsTest, WhosePeerHasMuchToTakeStandsBehindOthers) {
  End a = open('a'), b = open('b'), c = open('c');
  talk({&a, &b, &c});
  a.stream->waiting = b.stream->waiting = BodyTurns::kUntakenBytes;
  for (End* const end : {&a, &b, &c}) end->peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  for (int i = 0; i < 6; ++i) {
    turn();
    EXPECT_EQ(moved('a') + moved('b'), 0U);
  }
  b.stream->waiting = BodyTurns::kUntakenBytes - 1;
  for (int i = 0; i < 6; ++i) turn();
  EXPECT_EQ(moved('a'), 0U);
  EXPECT_GT(moved('b'), 4 * kTurnSlice) << "a turn or two until it is asked";
  loop_.settle();
  for (const char who : {'a', 'b', 'c'}) EXPECT_GT(moved(who), kTurnBody) << "when nobody else waits";
}

TEST_F(BodyTurnsTest, OneOfThoseBehindHasASliceNowAndThen) {
  constexpr int kRounds = 3;
  End a = open('a'), b = open('b'), c = open('c');
  talk({&a, &b, &c});
  a.stream->waiting = b.stream->waiting = BodyTurns::kUntakenBytes;
  for (End* const end : {&a, &b, &c}) {
    for (int i = 0; i < kRounds * BodyTurns::kBehindTurns / 4; ++i)
      end->peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  }
  for (int i = 0; i < kRounds * BodyTurns::kBehindTurns; ++i) turn();
  EXPECT_NEAR(static_cast<double>(moved('a') + moved('b')), kRounds * kTurnSlice, kTurnSlice);
  EXPECT_GE(std::min(moved('a'), moved('b')), kTurnSlice);
}

TEST_F(BodyTurnsTest, WhoReceivesIsNotAskedWhatItsPeerHasToTake) {
  End a = open('a'), c = open('c');
  talk({&a, &c});
  a.stream->waiting = BodyTurns::kUntakenBytes;
  c.peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  a.stream->feed(turn_frame(kTurnBody));
  a.stream->feed(make_bytes(kTurnBody, 2));
  for (int i = 0; i < 8; ++i) turn();
  EXPECT_GT(moved('a', false), 6 * kTurnSlice);
}

TEST_F(BodyTurnsTest, ThoseBehindTakeTurns) {
  End a = open('a'), b = open('b'), c = open('c');
  talk({&a, &b, &c});
  for (End* const end : {&a, &b, &c}) {
    end->stream->waiting = BodyTurns::kUntakenBytes;
    end->peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  }
  for (int i = 0; i < 12; ++i) {
    turn();
    const auto [least, most] = std::minmax({moved('a'), moved('b'), moved('c')});
    EXPECT_LE(most - least, 2 * kTurnSlice + kTurnHead);
  }
  a.peer->connection->close({Code::kCancelled, 0, "a test"});
  b.peer.reset();
  const std::size_t before = moved('a') + moved('b');
  loop_.settle();
  EXPECT_EQ(moved('a') + moved('b'), before);
  EXPECT_GT(moved('c'), kTurnBody);
}

TEST_F(BodyTurnsTest, WhoLeavesTheLineHoldsUpNobody) {
  End a = open('a'), b = open('b'), c = open('c');
  talk({&a, &b, &c});
  for (End* const end : {&a, &b, &c}) end->peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  a.peer->connection->close({Code::kCancelled, 0, "a test"});
  b.peer.reset();
  loop_.settle();
  EXPECT_EQ(moved('a') + moved('b'), 0U);
  EXPECT_GT(moved('c'), kTurnBody);
}

TEST_F(BodyTurnsTest, WhoHasHeardNobodyForASecondIsAlone) {
  End a = open('a'), b = open('b');
  talk({&a, &b});
  a.stream->feed(turn_ping());
  loop_.run_for(BodyTurns::kQuiet - Millis(1));
  record_.moves.clear();
  a.peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  EXPECT_TRUE(record_.moves.empty());
  loop_.settle();
  loop_.run_for(Millis(2));
  record_.moves.clear();
  a.peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  EXPECT_GT(moved('a'), kTurnBody);
  talk({&b});
  a.peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  EXPECT_TRUE(record_.moves.empty()) << "and then it is not any more";
  loop_.settle();
}

// Who asks for a body is small, too, and counts as its mover.
TEST_F(BodyTurnsTest, ThoseWhoMoveBodiesHaveNoLineAmongThemselves) {
  End a = open('a'), b = open('b');
  talk({&a, &b});
  for (int i = 0; i < 3; ++i) {
    record_.moves.clear();
    for (End* const end : {&a, &b}) {
      end->stream->feed(turn_ping());
      turn();
      end->peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
    }
    EXPECT_EQ(moved('a') > kTurnBody && moved('b') > kTurnBody, i == 2) << i;
    loop_.run_for(BodyTurns::kQuiet * 6 / 10);
  }
}

TEST_F(BodyTurnsTest, AMessageTakenBackInLineLeavesNoTrace) {
  End a = open('a'), b = open('b');
  talk({&a, &b});
  const SendId id = a.peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  EXPECT_TRUE(a.peer->connection->withdraw(id)) << "not a byte of it is sent";
  loop_.settle();
  EXPECT_TRUE(record_.moves.empty());
}

// Of Redis clients.
TEST_F(BodyTurnsTest, ConnectionsThatFrameThemselvesStandInTheSameLine) {
  End a = open('a');
  RawHandler handler(kTurnBody);
  auto stream = std::make_unique<RoomyStream>('r', record_);
  RoomyStream* const raw = stream.get();
  ByteConnection connection(loop_, handler, a.peer->counters, std::move(stream), {.turns = &turns_});
  ASSERT_TRUE(connection.start());
  raw->feed(make_bytes(kTurnBody, 4));
  turn();
  EXPECT_EQ(handler.got, kTurnBody) << "alone";
  raw->feed(make_bytes(10, 1));
  talk({&a});

  const auto body = make_bytes(kTurnBody, 5);
  handler.got = 0;
  raw->feed(make_bytes(kTurnBody, 4));
  connection.send({.head = {}, .body = {Bytes(body)}, .on_done = {}});
  connection.flush();
  EXPECT_TRUE(record_.moves.empty());
  a.peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  while (moved('a') < kTurnBody) {
    turn();
    const std::size_t of_raw = moved('r') + moved('r', false);
    ASSERT_LE(std::max(moved('a'), of_raw) - std::min(moved('a'), of_raw), 2 * kTurnSlice);
  }
  loop_.settle();
  EXPECT_EQ(handler.got, kTurnBody);
  EXPECT_EQ(moved('r'), kTurnBody);
  connection.send({.head = {}, .body = {Bytes(body)}, .on_done = {}});
  connection.close({Code::kCancelled, 0, "a test"});
  loop_.settle();
}

TEST_F(BodyTurnsTest, SharesGetTheSameHoweverManyConnectionsTheyHave) {
  const int one = 1, other = 2;
  std::vector<End> ends;
  for (char who = 'a'; who < 'i'; ++who) {
    ends.push_back(open(who));
    ends.back().peer->connection->set_share(who < 'g' ? &one : &other);
    ends.back().stream->feed(turn_ping());
  }
  loop_.settle();
  record_.moves.clear();
  for (const End& end : ends) end.peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  for (int turns = 0; turns < 24; ++turns) turn();
  std::array<std::size_t, 2> all{};
  for (char who = 'a'; who < 'i'; ++who) all[who < 'g' ? 0 : 1] += moved(who);
  EXPECT_GE(all[1], 23 * kTurnSlice);
  EXPECT_LE(std::max(all[0], all[1]) - std::min(all[0], all[1]), 2 * (kTurnSlice + kTurnHead));
  const auto [least, most] = std::minmax({moved('a'), moved('b'), moved('c'), moved('d'), moved('e'), moved('f')});
  EXPECT_LE(most - least, kTurnSlice + kTurnHead) << "and within a share each gets the same";
  loop_.settle();
  for (char who = 'a'; who < 'i'; ++who) EXPECT_GT(moved(who), kTurnBody) << "who is left goes on";
}

class SharesBehindTest : public BodyTurnsTest {
 protected:
  // Six of one share, `x` of another; the hosts of all have much to take.
  SharesBehindTest() {
    for (const char who : {'a', 'b', 'c', 'd', 'e', 'f', 'x'}) {
      ends_.push_back(open(who));
      ends_.back().peer->connection->set_share(who == 'x' ? &other_ : &one_);
      ends_.back().stream->feed(turn_ping());
    }
    loop_.settle();
    record_.moves.clear();
    for (const End& end : ends_) {
      end.stream->waiting = BodyTurns::kUntakenBytes;
      for (int i = 0; i < 4; ++i) end.peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
    }
  }

  const int one_ = 1, other_ = 2;
  std::vector<End> ends_;
};

TEST_F(SharesBehindTest, SharesTakeTurnsThereToo) {
  for (int turns = 0; turns < 20; ++turns) turn();
  std::size_t one = 0;
  for (char who = 'a'; who < 'g'; ++who) one += moved(who);
  EXPECT_GE(moved('x'), 19 * kTurnSlice);
  EXPECT_LE(std::max(one, moved('x')) - std::min(one, moved('x')), 2 * (kTurnSlice + kTurnHead));
}

TEST_F(SharesBehindTest, WhoReadsAgainIsFoundHoweverManyAnotherShareHas) {
  End talker = open('t');
  talker.peer->connection->set_share(&one_);
  for (int i = 0; i < 8; ++i) talker.peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  for (int turns = 0; turns < 8; ++turns) turn();
  record_.moves.clear();
  ends_.back().stream->waiting = 0;
  for (int turns = 0; turns < 3; ++turns) turn();
  EXPECT_GE(moved('x'), kTurnSlice) << "asked in every other turn";
  ends_.front().stream->waiting = 0;
  record_.moves.clear();
  for (int turns = 0; turns < 40; ++turns) turn();
  EXPECT_GE(moved('a'), 2 * kTurnSlice) << "and those of the other share one by one";
}

// Has always more to move.
class Mover final : public BodyTurns::User {
 public:
  explicit Mover(BodyTurns& turns) : turns_(turns) {}
  std::size_t slice = 0;  // of its last turn

 private:
  void on_body_turn() override { slice = turns_.ask(*this, false); }
  [[nodiscard]] std::size_t untaken_bytes() const override { return 0; }
  BodyTurns& turns_;
};

// Of several shares.
TEST_F(BodyTurnsTest, ALongTurnLooksAtAsManyBehindAsShortOnesDo) {
  const int one = 1, other = 2;
  End a = open('a'), x = open('x');
  a.peer->connection->set_share(&one);
  x.peer->connection->set_share(&other);
  for (int i = 0; i < 3; ++i) {
    for (End* const end : {&a, &x}) {
      end->stream->feed(turn_ping());
      turn();
      end->peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
    }
    loop_.run_for(BodyTurns::kQuiet * 6 / 10);
  }
  record_.moves.clear();
  record_.call = BodyTurns::kLongTurnTime / 4;
  x.stream->waiting = BodyTurns::kUntakenBytes;
  for (const End* const end : {&a, &x}) {
    for (int i = 0; i < 8; ++i) end->peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  }
  for (int i = 0; i < 4; ++i) turn();
  EXPECT_GE(moved('x'), 3 * BodyTurns::kLongSliceBytes) << "a slice in each turn";
  EXPECT_GE(moved('a'), 9 * BodyTurns::kLongSliceBytes);
  record_.call = {};
  loop_.settle();
}

TEST_F(BodyTurnsTest, TurnsAreShortWhereOtherThreadsMoveBodies) {
  Mover mover(turns_);
  EXPECT_EQ(turns_.ask(mover), BodyTurns::kNoLimit);
  EXPECT_EQ(turns_.ask(mover, false), 0U) << "alone, but for those";
  turn();
  EXPECT_EQ(mover.slice, BodyTurns::kSliceBytes);
  turns_.leave(mover);
}

TEST_F(BodyTurnsTest, SharesHaveTurnsAlsoWhereNobodyElseSaysAnything) {
  const int one = 1, other = 2;
  std::vector<End> ends;
  for (const char who : {'a', 'b', 'c', 'x'}) {
    ends.push_back(open(who));
    ends.back().peer->connection->set_share(who == 'x' ? &other : &one);
  }
  for (int i = 0; i < 3; ++i) {
    for (const End& end : ends) {
      end.stream->feed(turn_ping());
      turn();
      end.peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
    }
    loop_.run_for(BodyTurns::kQuiet * 6 / 10);
  }
  record_.moves.clear();
  record_.call = BodyTurns::kLongTurnTime / 10;
  for (const End& end : ends) {
    for (int i = 0; i < 8; ++i) end.peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  }
  EXPECT_TRUE(record_.moves.empty()) << "they stand in line";
  turn();
  EXPECT_EQ(record_.moves.size(), 10U) << "a long turn";
  EXPECT_NEAR(static_cast<double>(moved('x')), 5 * BodyTurns::kLongSliceBytes, 4 * kTurnHead);
  EXPECT_NEAR(static_cast<double>(moved('a') + moved('b') + moved('c')), 5 * BodyTurns::kLongSliceBytes, 4 * kTurnHead);

  loop_.settle();
  record_.call = {};
  ends.back().peer.reset();
  ends.pop_back();
  for (int i = 0; i < 3; ++i) {
    loop_.run_for(BodyTurns::kQuiet * 6 / 10);
    record_.moves.clear();
    for (const End& end : ends) end.peer->send(turn_frame(kTurnBody), make_bytes(kTurnBody, 1));
  }
  EXPECT_GT(std::min({moved('a'), moved('b'), moved('c')}), kTurnBody) << "one share alone has no line";
}

}  // namespace
}  // namespace kvd::net
