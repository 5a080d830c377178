// How a node treats its peers: the handshake, small requests, and bytes that make no sense.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "node/testing/rig.h"
#include "wire/crc32c.h"

namespace kvd::node {
namespace {

using net::Received;

TEST(Session, GreetsAClientOfItsVersion) {
  Rig rig;
  auto client = rig.connect(false);
  const Received reply = client->call(wire::frame({}, wire::Hello{.version_min = 1, .version_max = 9, .name = "x"}));
  const auto hello = wire::decode<wire::HelloReply>(reply.header, reply.meta);
  ASSERT_TRUE(hello.has_value());
  EXPECT_EQ(hello->version, 1);
  EXPECT_EQ(hello->store_uuid, rig.node->store().uuid());
  EXPECT_EQ(hello->ops_max, rig.options.limits.ops_max);
  EXPECT_EQ(hello->keys_max, kKeysPerRequestMax);
}

TEST(Session, TellsAClientOfAnotherVersionAndCloses) {
  Rig rig;
  auto client = rig.connect(false);
  const Received reply = client->call(wire::frame({}, wire::Hello{.version_min = 2, .version_max = 3, .name = "x"}));
  EXPECT_EQ(reply.header.status, Code::kStale);
  EXPECT_EQ(wire::error_text(reply.meta), "this depot speaks version 1 of the protocol");
  EXPECT_TRUE(client->ended());
}

TEST(Session, TellsAHeaderOfAnotherVersionAndCloses) {
  Rig rig;
  auto client = rig.connect(false);
  wire::Buffer hello = wire::frame({}, wire::Hello{.name = "x"});
  hello[4] = std::byte{2};
  const Received reply = client->call(std::move(hello));
  EXPECT_EQ(reply.header.opcode, wire::Opcode::kHelloReply);
  EXPECT_EQ(reply.header.status, Code::kStale);
  EXPECT_TRUE(client->ended());
}

TEST(Session, TellsAnHttpClientWhereItIs) {
  Rig rig;
  auto [near, far] = net::make_socket_pair();
  ASSERT_TRUE(rig.node->adopt(net::make_socket_stream(std::move(far))).has_value());
  const std::string_view request = "GET /metrics HTTP/1.1\r\nHost: depot\r\n\r\n";
  ASSERT_EQ(::write(near.get(), request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  ASSERT_TRUE(rig.until([&, &fd = near] {
    char buffer[1024];
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n > 0) answer.append(buffer, static_cast<std::size_t>(n));
    return n == 0;
  }));
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 400 "));
  EXPECT_NE(answer.find("This is a kvdepot port"), std::string::npos);
  EXPECT_TRUE(rig.until([&] { return rig.stat("node", "connections") == 0; }));
}

TEST(Session, CutsAPeerThatSaysNothing) {
  NodeOptions options = test_options();
  options.limits.handshake_limit = std::chrono::milliseconds(5);
  Rig rig(options);
  auto silent = rig.connect(false);
  EXPECT_TRUE(silent->ended());
  auto polite = rig.connect();
  EXPECT_EQ(polite->call(wire::frame({.request_id = 1}, wire::Ping{})).header.opcode, wire::Opcode::kPingReply);
}

TEST(Session, EndsAConnectionThatBreaksTheProtocol) {
  Rig rig;
  const auto expect_end = [&](wire::Buffer request, bool hello) {
    auto client = rig.connect(hello);
    client->send(std::move(request));
    EXPECT_TRUE(client->ended());
  };
  expect_end(wire::frame({.request_id = 1}, wire::Ping{}), false);      // before HELLO
  expect_end(wire::frame({}, wire::Hello{.name = "again"}), true);      // twice
  expect_end(wire::frame({}, wire::Ping{}), true);                      // no id
  expect_end(wire::frame({.request_id = 1}, wire::PingReply{}), true);  // a response
  wire::Buffer bad = wire::frame({.request_id = 1}, wire::Unpin{5});
  bad.back() ^= std::byte{1};
  expect_end(std::move(bad), true);  // meta CRC
  const wire::Buffer unpin = wire::frame({.request_id = 1}, wire::StatsReply{"too long for it"});
  wire::Buffer odd = unpin;
  odd[5] = static_cast<std::byte>(wire::Opcode::kUnpin);
  const std::uint32_t crc = wire::crc32c(Bytes(odd).first(60));
  std::memcpy(odd.data() + 60, &crc, 4);
  expect_end(std::move(odd), true);  // malformed structure
  EXPECT_TRUE(rig.until([&] { return rig.stat("node", "connections") == 0; }));
  EXPECT_GE(rig.stat("net", "protocol_errors"), 4U);
}

TEST(Session, SurvivesRandomBytes) {
  Rig rig;
  Random random(3);
  for (int round = 0; round < 100; ++round) {
    auto client = rig.connect(random.chance(1, 2));
    wire::Buffer bytes = net::make_bytes(64 + random.below(5000), random.next());
    if (random.chance(1, 2)) {  // a good header in front of nonsense
      wire::Header header{.opcode = static_cast<wire::Opcode>(1 + random.below(11)), .request_id = 1 + random.below(5)};
      header.items = static_cast<std::uint32_t>(random.next());
      header.meta_bytes = static_cast<std::uint32_t>(random.below(bytes.size()));
      header.body_bytes = header.meta_bytes;
      header.meta_crc =
          wire::crc32c(Bytes(bytes).subspan(64, std::min<std::size_t>(header.meta_bytes, bytes.size() - 64)));
      wire::encode_header(header, bytes);
    }
    client->send(std::move(bytes));
    rig.loop->run_once(Duration::zero());
    if (random.chance(1, 2)) client->vanish();
    rig.loop->run_once(Duration::zero());
  }
  auto client = rig.connect();
  EXPECT_EQ(client->call(wire::frame({.request_id = 1}, wire::Ping{})).header.opcode, wire::Opcode::kPingReply);
  client.reset();
  EXPECT_TRUE(rig.until([&] { return rig.stat("node", "connections") == 0; }));
}

TEST(Session, HandlesOfANamespaceAreEqualAndAnotherSchemaIsRefused) {
  Rig rig;
  auto client = rig.connect();
  const Namespace ns = small_namespace();
  EXPECT_EQ(client->open(ns), client->open(ns));
  Namespace other = ns;
  other.fingerprint = "another model";
  EXPECT_NE(client->open(ns), client->open(other));
  Namespace clash = ns;
  clash.groups[0].layers = 4;
  auto second = rig.connect();
  const Received reply = second->call(wire::frame({.request_id = 7}, wire::Open{clash}));
  EXPECT_EQ(reply.header.status, Code::kInvalid);
  EXPECT_EQ(reply.header.request_id, 7U);
  EXPECT_FALSE(wire::error_text(reply.meta).empty());
  Namespace impossible = ns;
  impossible.groups[0].slab_bytes = 100U << 20;
  EXPECT_EQ(second->call(wire::frame({.request_id = 8}, wire::Open{impossible})).header.status, Code::kInvalid);
  second->open(ns);  // the connection goes on
}

TEST(Session, NamespacesOfAConnectionAreBounded) {
  NodeOptions options = test_options();
  options.limits.namespaces_max = 2;
  Rig rig(options);
  auto client = rig.connect();
  Namespace ns = small_namespace();
  client->open(ns);
  ns.fingerprint = "b";
  client->open(ns);
  ns.fingerprint = "c";
  EXPECT_EQ(client->call(wire::frame({.request_id = 9}, wire::Open{ns})).header.status, Code::kNoSpace);
  client->send(wire::frame({.request_id = 10}, wire::Close{0}));
  EXPECT_EQ(client->open(ns), 0U) << "a handle that was given back";
  const Received reply = client->call(wire::frame({.request_id = 11}, wire::Unpin{1}));
  EXPECT_EQ(reply.header.status, Code::kNotFound) << "CLOSE has no answer";
}

TEST(Session, ConnectionsAreBounded) {
  NodeOptions options = test_options();
  options.limits.connections_max = 2;
  options.listen = {"tcp://127.0.0.1:0"};
  Rig rig(options);
  auto first = rig.connect_tcp();
  auto second = rig.connect_tcp();
  auto [near, far] = net::make_socket_pair();
  EXPECT_EQ(rig.node->adopt(net::make_socket_stream(std::move(far))).error().code, Code::kBusy);
  first.reset();
  EXPECT_TRUE(rig.until([&] { return rig.stat("node", "connections") == 1; }));
  rig.connect_tcp();
}

TEST(Session, StatsAreJson) {
  Rig rig;
  auto client = rig.connect();
  const Received reply = client->call(wire::frame({.request_id = 1}, wire::Stats{}));
  const auto json = nlohmann::json::parse(as_text(reply.meta));
  EXPECT_EQ(json.at("version"), KVD_VERSION);
  EXPECT_EQ(json.at("node").at("connections"), 1);
  EXPECT_TRUE(json.at("store").contains("dirty_bytes"));
  EXPECT_TRUE(json.at("net").contains("send_calls"));
}

// Six removals of 65,536 records each go in slices: what another client asks comes in between.
TEST(Session, RemovalsLeaveTheLoopToOtherClients) {
  Rig rig;
  auto client = rig.connect();
  auto other = rig.connect();
  const std::uint32_t ns = client->open(small_namespace());
  const auto keys = Records::keys(0, 4096);
  wire::Remove remove{.ns = ns, .shards = {}, .groups = {0}, .keys = {keys, 16, true}};
  for (std::uint16_t shard = 0; shard < 16; ++shard) remove.shards.push_back(shard);
  const std::size_t before = client->peer().received.size();
  for (int i = 0; i < 6; ++i) client->send(wire::frame({.request_id = client->new_id()}, remove));
  EXPECT_TRUE(rig.until([&] { return rig.stat("node", "requests_remove") > 0; }));
  EXPECT_EQ(other->call(wire::frame({.request_id = 9}, wire::Ping{})).header.opcode, wire::Opcode::kPingReply);
  EXPECT_EQ(client->peer().received.size(), before);
  EXPECT_TRUE(rig.until([&] { return client->peer().received.size() == before + 6; }));
  for (std::size_t i = before; i < client->peer().received.size(); ++i) {
    EXPECT_EQ(client->peer().received[i].header.status, Code::kOk);
  }
  EXPECT_EQ(rig.stat("node", "op_keys"), 0U);
}

// The same of matches, each of 65,536 lookups and as many pins, and of giving these pins back.
TEST(Session, LongMatchesLeaveTheLoopToOtherClients) {
  NodeOptions options = test_options();
  options.limits.lease_pins_max = 4 * 65'536;  // two of these matches for a connection
  Rig rig(options);
  const Records records(small_namespace(1, 512));
  for (std::size_t first = 0; first < 4096; first += 1024) ASSERT_TRUE(rig.put_all(records, first, 1024));
  auto client = rig.connect();
  auto other = rig.connect();
  const std::uint32_t ns = client->open(records.ns());
  const auto keys = Records::keys(0, 4096);
  const wire::Match match{.ns = ns,
                          .promote = true,
                          .lease_ms = 60'000,
                          .blocks = 4096,
                          .shards = std::vector<std::uint16_t>(16),
                          .groups = {0},
                          .keys = {keys, 16, true}};
  std::size_t before = client->peer().received.size();
  for (int i = 0; i < 4; ++i) client->send(wire::frame({.request_id = client->new_id()}, match));
  EXPECT_TRUE(rig.until([&] { return rig.stat("node", "op_keys") > 0; }));
  EXPECT_EQ(other->call(wire::frame({.request_id = 9}, wire::Ping{})).header.opcode, wire::Opcode::kPingReply);
  EXPECT_EQ(client->peer().received.size(), before);
  EXPECT_TRUE(rig.until([&] { return client->peer().received.size() == before + 4; }));
  std::vector<std::uint64_t> leases;
  for (std::size_t i = before; i < client->peer().received.size(); ++i) {
    const Received& m = client->peer().received[i];
    const auto reply = wire::decode<wire::MatchReply>(m.header, m.meta);
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->prefix_blocks, 4096U);
    EXPECT_EQ(reply->lease != 0, leases.size() < 2) << i;
    if (reply->lease != 0) leases.push_back(reply->lease);
  }
  EXPECT_EQ(rig.stat("node", "leases"), 2U);
  EXPECT_EQ(rig.stat("node", "op_keys"), 0U);
  before = client->peer().received.size();
  for (const std::uint64_t lease : leases) {
    client->send(wire::frame({.request_id = client->new_id()}, wire::Unpin{lease}));
  }
  EXPECT_TRUE(rig.until([&] { return client->peer().received.size() == before + 2; }));
  EXPECT_EQ(rig.stat("node", "leases"), 0U);
  EXPECT_GT(rig.stat("store", "pool_bytes_pinned"), 0U);
  EXPECT_TRUE(rig.until([&] { return rig.stat("store", "pool_bytes_pinned") == 0; }));
  // One whose deadline passes in the middle is given up.
  before = client->peer().received.size();
  client->send(wire::frame({.request_id = client->new_id(), .deadline_ms = 1}, match));
  ASSERT_TRUE(rig.until([&] { return client->peer().received.size() == before + 1; }));
  EXPECT_EQ(client->peer().received[before].header.status, Code::kTimeout);
  EXPECT_EQ(rig.stat("node", "leases"), 0U);
  // A client that goes away in the middle leaves nothing behind.
  client->send(wire::frame({.request_id = client->new_id()}, match));
  EXPECT_TRUE(rig.until([&] { return rig.stat("node", "op_keys") > 0; }));
  client->vanish();
  EXPECT_TRUE(rig.until([&] {
    return rig.stat("node", "op_keys") == 0 && rig.stat("node", "leases") == 0 &&
           rig.stat("store", "pool_bytes_pinned") == 0;
  }));
}

// A flood of connections that say nothing keeps nobody out, and those that have said HELLO stay.
TEST(Session, TheOldestSilentConnectionMakesRoom) {
  NodeOptions options = test_options();
  options.limits.connections_max = 3;
  Rig rig(options);
  auto polite = rig.connect();
  auto silent = rig.connect(false);
  auto younger = rig.connect(false);
  auto next = rig.connect();
  EXPECT_TRUE(silent->ended());
  EXPECT_FALSE(younger->peer().closed);
  auto last = rig.connect();
  EXPECT_TRUE(younger->ended());
  EXPECT_EQ(rig.stat("node", "connections"), 3U);
  EXPECT_EQ(rig.stat("node", "connections_silent"), 2U);
  auto [near, far] = net::make_socket_pair();
  EXPECT_EQ(rig.node->adopt(net::make_socket_stream(std::move(far))).error().code, Code::kBusy)
      << "all have said HELLO";
  for (RawClient* client : {polite.get(), next.get(), last.get()}) {
    EXPECT_EQ(client->call(wire::frame({.request_id = 1}, wire::Ping{})).header.opcode, wire::Opcode::kPingReply);
  }
  polite->vanish();
  EXPECT_TRUE(rig.until([&] { return rig.stat("node", "connections") == 2; }));
  EXPECT_EQ(rig.connect()->call(wire::frame({.request_id = 1}, wire::Ping{})).header.status, Code::kOk);
}

TEST(Session, WhoBreaksTheProtocolIsToldOfByHostAndName) {
  Rig rig;
  auto client = rig.connect();
  client->send(wire::frame({}, wire::Hello{.name = "somebody else"}));
  EXPECT_TRUE(client->ended());
  EXPECT_TRUE(rig.until([&] { return rig.log.count("closed the connection of this host: 'test': ") == 1; }));
}

// Deadlines of weeks, and none, end by the node's own limit.
TEST(Session, NoRequestHoldsThePoolForEver) {
  NodeOptions options = test_options();
  options.limits.op_limit = std::chrono::milliseconds(30);
  options.shape_read_bytes_per_s = 1'000'000;
  Rig rig(options);
  const Records records(small_namespace(4, 262144));
  ASSERT_TRUE(rig.put_all(records, 0, 2));
  auto client = rig.connect();
  const std::uint32_t ns = client->open(records.ns());
  client->send(records.put(client->new_id(), ns, 100, 1, AckLevel::kPooled, 4'000'000'000U));
  EXPECT_EQ(client->next().header.status, Code::kTimeout);
  client->send(records.put(client->new_id(), ns, 101, 1, AckLevel::kPooled, 0));
  EXPECT_EQ(client->next().header.status, Code::kTimeout) << "however little it waits between two messages";
  client->send(Records::get(client->new_id(), ns, 0, 2));  // 2 MiB: two seconds
  Received last = client->next();
  while (!last.header.last()) last = client->next();
  EXPECT_EQ(last.header.status, Code::kTimeout);
  EXPECT_TRUE(rig.until([&] { return rig.stat("node", "pinned_bytes") == 0; }));
}

TEST(Session, APeerThatDoesNotReadItsRepliesIsCut) {
  NodeOptions options = test_options();
  options.limits.stall_limit = std::chrono::milliseconds(20);
  Rig rig(options);
  auto [near, far] = net::make_socket_pair();
  ASSERT_TRUE(rig.node->adopt(net::make_socket_stream(std::move(far))).has_value());
  wire::Buffer burst = wire::frame({}, wire::Hello{.name = "deaf"});
  const wire::Buffer stats = wire::frame({.request_id = 1}, wire::Stats{});
  for (int i = 0; i < 50; ++i) burst.insert(burst.end(), stats.begin(), stats.end());
  EXPECT_TRUE(rig.until([&, &fd = near] {
    static_cast<void>(::send(fd.get(), burst.data(), burst.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
    burst = stats;
    for (int i = 0; i < 50; ++i) burst.insert(burst.end(), stats.begin(), stats.end());
    return rig.stat("node", "connections_accepted") == 1 && rig.stat("node", "connections") == 0;
  }));
}

TEST(Session, NamespacesOfRedisClientsAreNotForOthers) {
  Rig rig(test_options());
  const auto client = rig.connect();
  Namespace ns = small_namespace(1, 512);
  ns.fingerprint = "kvdepot.resp.1.parts.0";
  EXPECT_EQ(client->call(wire::frame({.request_id = client->new_id()}, wire::Open{ns})).header.status, Code::kInvalid);
}

// Who sleeps does so for half a second here; who looks for more does not.
bool sleeps(io::Loop& loop) {
  for (int turn = 0; turn < 100; ++turn) {
    const Time begun = loop.now();
    if (!loop.run_once(Millis(500))) return loop.now() - begun >= Millis(500);
  }
  return true;
}

// Of a node of which this was asked, whose answers nobody of its loop reads.
bool sleeps_behind(const wire::Buffer& request) {
  Rig rig;
  rig.loop->set_spin(std::chrono::seconds(20));
  auto [near, far] = net::make_socket_pair();
  EXPECT_TRUE(rig.node->adopt(net::make_socket_stream(std::move(far))).has_value());
  for (const wire::Buffer& bytes : {wire::frame({}, wire::Hello{.name = "test"}),
                                    wire::frame({.request_id = 1}, wire::Open{small_namespace()}), request}) {
    EXPECT_EQ(::write(near.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  for (int turn = 0; turn < 20; ++turn) rig.loop->run_once(Millis(1));
  EXPECT_EQ(rig.stat("node", "connections"), 1U) << "all is in order";
  EXPECT_EQ(rig.stat("node", "answered_invalid"), 0U);
  return sleeps(*rig.loop);
}

TEST(Session, LooksForMoreBehindALookupAndBehindASmallGet) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "nobody spins on one core";
  const auto keys = Records::keys(0, 1);
  EXPECT_FALSE(sleeps_behind(wire::frame({.request_id = 2}, wire::Match{.ns = 0,
                                                                        .promote = false,
                                                                        .lease_ms = 0,
                                                                        .blocks = 1,
                                                                        .shards = {0},
                                                                        .groups = {0},
                                                                        .keys = {keys, sizeof(Key), true}})));
  EXPECT_FALSE(sleeps_behind(Records::get(2, 0, 0, 21)));
  EXPECT_TRUE(sleeps_behind(Records::get(2, 0, 0, 22))) << "264 KiB";
  EXPECT_TRUE(sleeps_behind(wire::frame({.request_id = 2}, wire::Ping{})));
}

}  // namespace
}  // namespace kvd::node
