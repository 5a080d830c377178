// Whose bodies a node moves while others ask for little (net/body_turns.h).
#include <algorithm>
#include <array>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "auth/testing/tokens.h"
#include "io/sim/sim_loop.h"
#include "net/arena.h"
#include "net/testing/roomy_stream.h"
#include "node/testing/rig.h"

namespace kvd::node {
namespace {

constexpr std::size_t kRecord = std::size_t{4} << 20;
constexpr std::size_t kReadAhead = std::size_t{32} << 10;
constexpr int kTurnsMax = 10'000;

class TurnsTest : public testing::Test {
 protected:
  explicit TurnsTest(const std::string& credentials = {}, std::uint64_t shape_read_bytes_per_s = 0) {
    NodeOptions options = test_options();
    options.shape_read_bytes_per_s = shape_read_bytes_per_s;
    if (!credentials.empty()) options.authority = auth::shared_authority(credentials);
    options.store.flash_bytes = 0;
    std::string why;
    auto started = Node::start(loop_, log_, options, &why);
    EXPECT_TRUE(started.has_value()) << why;
    node_ = std::move(*started);
  }
  net::RoomyStream* connect(char who) {
    auto stream = std::make_unique<net::RoomyStream>(who, record_);
    net::RoomyStream* const roomy = stream.get();
    EXPECT_TRUE(node_->adopt(std::move(stream)).has_value());
    roomy->feed(wire::frame({}, wire::Hello{.name = "test"}));
    roomy->feed(wire::frame({.request_id = 1}, wire::Open{records_.ns()}));
    loop_.settle();
    return roomy;
  }
  net::RoomyStream* connect_resp(char who) {
    auto stream = std::make_unique<net::RoomyStream>(who, record_);
    net::RoomyStream* const roomy = stream.get();
    EXPECT_TRUE(node_->adopt_resp(std::move(stream)).has_value());
    return roomy;
  }
  static wire::Buffer match() {
    const auto keys = Records::keys(1, 1);
    return wire::frame({.request_id = 2},
                       wire::Match{.ns = 0, .blocks = 1, .shards = {0}, .groups = {0}, .keys = {keys, 16, true}});
  }
  static Bytes bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }
  void turn() { loop_.run_once(Duration::zero()); }
  [[nodiscard]] std::size_t moved(char who, bool out) const {
    std::size_t bytes = 0;
    for (const net::Move& move : record_.moves) bytes += move.who == who && move.out == out ? move.bytes : 0;
    return bytes;
  }
  // Turns in which `who` moves bodies and `asks` is answered: first, in each of them.
  void expect_answers(net::RoomyStream& looker, char who, bool out) {
    for (int i = 0; i < 4; ++i) {
      record_.moves.clear();
      looker.feed(match());
      turn();
      const auto answer = std::ranges::find_if(record_.moves, [](const auto& m) { return m.who == 'l' && m.out; });
      ASSERT_NE(answer, record_.moves.end()) << "in the turn in which it came";
      const auto body = [&](const net::Move& m) { return m.who == who && m.bytes > net::BodyTurns::kSmallBytes; };
      EXPECT_TRUE(std::none_of(record_.moves.begin(), answer, body));
      EXPECT_TRUE(std::any_of(answer, record_.moves.end(), body)) << "it goes on";
      EXPECT_LE(moved(who, out), net::BodyTurns::kTurnBytes + kReadAhead);
    }
  }

  io::SimClock clock_;
  io::SimLoop loop_{clock_};
  RecordingLog log_;
  net::RoomyStream::Record record_{.clock = clock_, .moves = {}, .call = {}};
  Records records_{small_namespace(8, kRecord / 8)};
  std::unique_ptr<Node> node_;
};

TEST_F(TurnsTest, ALookupIsAnsweredBeforeBodiesOfOthersGoOn) {
  net::RoomyStream* const puller = connect('p');
  net::RoomyStream* const looker = connect('l');
  puller->feed(records_.put(5, 0, 1, 1));
  puller->feed(records_.put_head(5, 1, 1, 0, 8));
  puller->feed(records_.put_body(1, 1, 0, 8));
  expect_answers(*looker, 'p', false);
  loop_.run_for(Millis(1));
  puller->feed(Records::get(6, 0, 1, 1));
  turn();
  turn();
  expect_answers(*looker, 'p', true);
  loop_.settle();
  EXPECT_GT(puller->taken().size(), kRecord);
}

TEST_F(TurnsTest, ALookupIsAnsweredBeforeValuesOfRedisClientsGoOn) {
  net::RoomyStream* const redis = connect_resp('r');
  net::RoomyStream* const looker = connect('l');
  redis->feed(bytes_of("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$" + std::to_string(kRecord) + "\r\n"));
  turn();
  redis->feed(net::make_bytes(kRecord, 1));
  redis->feed(bytes_of("\r\n"));
  expect_answers(*looker, 'r', false);
  loop_.run_for(Millis(1));
  redis->feed(bytes_of("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"));
  turn();
  turn();
  expect_answers(*looker, 'r', true);
  loop_.settle();
  EXPECT_GT(redis->taken().size(), kRecord);
}

// Token 1 is of tenant a, 2 of tenant b.
class SharesTest : public TurnsTest {
 protected:
  explicit SharesTest(std::uint64_t shape_read_bytes_per_s = 0)
      : TurnsTest(auth::token_line(1, "n1", "a", "read,write") + auth::token_line(2, "n2", "b", "read,write"),
                  shape_read_bytes_per_s) {}
  // With `memory` on this host.
  net::RoomyStream* enter(char who, int token, std::uint64_t memory = 0) {
    auto stream = std::make_unique<net::RoomyStream>(who, record_);
    net::RoomyStream* const roomy = stream.get();
    roomy->local = memory != 0;
    EXPECT_TRUE(node_->adopt(std::move(stream)).has_value());
    Namespace ns = records_.ns();
    ns.tenant = token == 1 ? "a" : "b";
    const std::uint64_t asked = memory == 0 ? 0 : memory | wire::kFeatureAuthFeatures;
    roomy->feed(wire::frame({}, wire::Hello{.features = wire::kFeatureToken | asked, .name = "test"}));
    roomy->feed(wire::frame({}, wire::Auth{auth::token_number(token)}));
    roomy->feed(wire::frame({.request_id = 1}, wire::Open{ns}));
    loop_.run_for(Millis(1));
    return roomy;
  }
  // a, c and e of one tenant, b of the other.
  std::array<net::RoomyStream*, 4> enter_all(std::uint64_t memory = 0) {
    return {enter('a', 1, memory), enter('b', 2, memory), enter('c', 1, memory), enter('e', 1, memory)};
  }
  net::RoomyStream* enter_resp(char who, int token) {
    net::RoomyStream* const redis = connect_resp(who);
    redis->feed(bytes_of("AUTH " + auth::token_number(token) + "\r\n"));
    loop_.run_for(Millis(1));
    return redis;
  }
  // Each of the four is fed `work`. What the three had moved out when the one had moved `bytes`, or all that there was.
  std::size_t others_when_b_has(std::size_t bytes, const std::array<net::RoomyStream*, 4>& clients, Bytes work) {
    record_.moves.clear();
    for (net::RoomyStream* const client : clients) client->feed(work);
    for (int turns = 0; moved('b', true) < bytes && turns < kTurnsMax; ++turns) turn();
    EXPECT_GE(moved('b', true), bytes);
    return moved('a', true) + moved('c', true) + moved('e', true);
  }
  void put(net::RoomyStream& client, std::size_t count = 1) {
    client.feed(records_.put(5, 0, 1, count));
    client.feed(records_.put_head(5, 1, count, 0, records_.layers()));
    client.feed(records_.put_body(1, count, 0, records_.layers()));
    loop_.run_for(Millis(1));
  }
  void set(net::RoomyStream& redis, std::size_t bytes = kRecord) {
    redis.feed(bytes_of("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$" + std::to_string(bytes) + "\r\n"));
    redis.feed(net::make_bytes(bytes, 1));
    redis.feed(bytes_of("\r\n"));
    loop_.run_for(Millis(1));
  }
  // Each of four asks for its tenant's record.
  void ask() {
    const auto clients = enter_all();
    put(*clients[0]);
    put(*clients[1]);
    record_.moves.clear();
    for (net::RoomyStream* const client : clients) client->feed(Records::get(6, 0, 1, 1));
  }
  // Behind some turns in which all of them had more to move.
  void expect_shared() const {
    constexpr std::size_t kAbout = 5 * net::BodyTurns::kSliceBytes;
    const std::size_t three = moved('a', true) + moved('c', true) + moved('e', true);
    EXPECT_GE(moved('b', true), 4 * kAbout);
    EXPECT_LT(moved('b', true), kRecord);
    EXPECT_LE(three, moved('b', true) + kAbout);
    EXPECT_GE(three + kAbout, moved('b', true));
  }
};

class ShapedSharesTest : public SharesTest {
 protected:
  ShapedSharesTest() : SharesTest(100'000'000) {}
};

TEST_F(SharesTest, ATenantHasNoMoreOfTheTurnsForHavingMoreConnections) {
  ask();
  for (int i = 0; i < 24; ++i) turn();
  expect_shared();
}

TEST_F(SharesTest, ATenantsRedisClientsAreOfItsShare) {
  std::vector<net::RoomyStream*> clients;
  for (const char who : {'a', 'b', 'c', 'e'}) clients.push_back(enter_resp(who, who == 'b' ? 2 : 1));
  set(*clients[0]);
  set(*clients[1]);
  record_.moves.clear();
  for (net::RoomyStream* const client : clients) client->feed(bytes_of("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"));
  for (int i = 0; i < 24; ++i) turn();
  expect_shared();
}

TEST_F(ShapedSharesTest, TenantsHaveTheSameOfABandwidth) {
  ask();
  loop_.run_for(Millis(60));
  expect_shared();
}

TEST_F(SharesTest, RemovalsOfATenantAreOfItsShare) {
  const auto clients = enter_all();
  const auto keys = Records::keys(1, 4096);  // eight slices
  const auto work =
      wire::frame({.request_id = 7}, wire::Remove{.ns = 0, .shards = {0}, .groups = {0}, .keys = {keys, 16, true}});
  EXPECT_EQ(others_when_b_has(1, clients, work), 0U) << "they are at a third";
}

TEST_F(SharesTest, LookupsOfATenantAreOfItsShare) {
  constexpr std::uint32_t kKeys = 2048;  // four slices
  records_ = Records(small_namespace(1));
  const auto clients = enter_all();
  put(*clients[0], kKeys);
  put(*clients[1], kKeys);
  const auto keys = Records::keys(1, kKeys);
  const auto work = wire::frame(
      {.request_id = 7}, wire::Match{.ns = 0, .blocks = kKeys, .shards = {0}, .groups = {0}, .keys = {keys, 16, true}});
  EXPECT_EQ(others_when_b_has(1, clients, work), 0U) << "they are at a third";
}

TEST_F(SharesTest, WhatATenantPutsThroughArenasIsTakenInItsShare) {
  const auto clients = enter_all(wire::kFeatureArena);
  for (std::size_t i = 0; i < clients.size(); ++i) {
    const auto arena = net::Arena::map(std::move(clients[i]->given), test_options().limits.arena_bytes);
    ASSERT_TRUE(arena.has_value()) << arena.error().what;
    std::ranges::copy(records_.put_body(i, 1, 0, 8), (*arena)->writable().begin());
    std::vector<std::uint64_t> checksums;
    for (std::uint32_t layer = 0; layer < 8; ++layer) checksums.push_back(records_.checksum(i, layer));
    const wire::U64View view{std::span<const std::uint64_t>(checksums)};
    clients[i]->feed(records_.put(7, 0, i, 1));
    clients[i]->feed(wire::frame({.request_id = 7, .items = 1}, wire::PutArena{.checksums = view}));
  }
  EXPECT_EQ(others_when_b_has(1, clients, {}), 0U) << "they are at a third";
}

// Records of which there are none are looked for as those that are there.
TEST_F(SharesTest, ReportsOfATenantAreVerifiedInItsShare) {
  constexpr std::uint32_t kKeys = 30;
  const auto clients = enter_all();
  const auto keys = Records::keys(1, kKeys);
  const auto work = wire::frame({.request_id = 7, .items = kKeys},
                                wire::Check{.ns = 0, .shard = 0, .group = 0, .keys = {keys, 16, true}});
  for (net::RoomyStream* const client : clients) client->feed(work);
  const auto waiting = [this] {
    return nlohmann::json::parse(node_->stats_json()).at("node").at("op_keys").get<std::uint64_t>();
  };
  turn();
  EXPECT_EQ(waiting(), 4 * kKeys - 1) << "but for one that this turn had time for";
  int turns = 0;
  for (std::uint64_t before = 4 * kKeys; waiting() + kKeys > before && turns < kTurnsMax; ++turns) turn();
  EXPECT_LE(turns, 80) << "when one is through, b's are: it has every other turn";
  for (; waiting() > 0 && turns < kTurnsMax; ++turns) turn();
  EXPECT_GE(turns, 100) << "a record at a time";
  clients[0]->feed(work);
  clients[0]->feed(work);
  turn();
  EXPECT_GT(waiting(), kKeys);
  node_.reset();  // what waits gives back what it counts for
}

// The pool is not shared with this one: GETs are copied for its clients.
TEST_F(SharesTest, WhatIsCopiedForATenantIsInItsShare) {
  const auto clients = enter_all(wire::kFeatureSharedMemory);
  put(*clients[0]);
  put(*clients[1]);
  const auto work = Records::get(7, 0, 1, 1);
  record_.moves.clear();
  clients[1]->feed(work);
  loop_.run_for(Millis(1));
  const std::size_t views = moved('b', true);
  ASSERT_LT(views, 8 * kReadAhead) << "and no bodies";
  EXPECT_LE(others_when_b_has(views, clients, work), views * 3 / 2);
}

TEST_F(SharesTest, ValuesOfATenantAreVerifiedInItsShare) {
  constexpr std::size_t kValue = std::size_t{256} << 10, kValues = 24;
  const std::array clients{enter_resp('a', 1), enter_resp('b', 2), enter_resp('c', 1), enter_resp('e', 1)};
  for (net::RoomyStream* const client : {clients[0], clients[1]}) set(*client, kValue);
  std::string command = "*" + std::to_string(kValues + 1) + "\r\n$4\r\nMGET\r\n";
  for (std::size_t i = 0; i < kValues; ++i) command += "$1\r\nk\r\n";
  EXPECT_LE(others_when_b_has(kValues * kValue, clients, bytes_of(command)), kValues * kValue * 3 / 2);
}

// Of more commands than Redis clients have in a turn.
TEST_F(SharesTest, CommandsOfATenantsRedisClientsAreOfItsShare) {
  constexpr std::size_t kCommands = 40'000, kAnswer = 7;
  const std::array clients{enter_resp('a', 1), enter_resp('b', 2), enter_resp('c', 1), enter_resp('e', 1)};
  record_.call = std::chrono::microseconds(300);
  std::string commands;
  for (std::size_t i = 0; i < kCommands; ++i) commands += "PING\r\n";
  EXPECT_LE(others_when_b_has(kCommands * kAnswer, clients, bytes_of(commands)), kCommands * kAnswer * 3 / 2);
}

}  // namespace
}  // namespace kvd::node
