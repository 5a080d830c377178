// Sessions whose messages go through rings, seen by clients that speak raw protocol.
#include <gtest/gtest.h>

#include "net/ring_stream.h"
#include "node/testing/rig.h"

namespace kvd::node {
namespace {

constexpr std::uint64_t kBoth = wire::kFeatureSharedMemory | wire::kFeatureRings;

class SessionRingTest : public testing::Test {
 protected:
  void start(NodeOptions options = test_options()) {
    options.store.share_pool = true;
    rig = std::make_unique<Rig>(std::move(options));
  }
  // A client that has its rings, when the depot gives some.
  std::unique_ptr<RawClient> connect(std::uint64_t features = wire::kFeatureRings) {
    auto [near, far] = net::make_socket_pair();
    auto stream = std::make_unique<net::RingStream>(net::make_socket_stream(std::move(near)));
    net::RingStream& ring = *stream;
    EXPECT_TRUE(rig->node->adopt(net::make_socket_stream(std::move(far))).has_value());
    auto client = std::make_unique<RawClient>(*rig->loop, std::move(stream), true, features);
    if ((client->features() & wire::kFeatureSharedMemory) != 0) {
      EXPECT_EQ(client->next().header.opcode, wire::Opcode::kMemory);
      static_cast<void>(client->peer().take_descriptor());
    }
    if ((client->features() & wire::kFeatureRings) == 0) return client;
    const net::Received given = client->next();
    const auto size = wire::decode<wire::Rings>(given.header, given.meta);
    EXPECT_TRUE(given.header.opcode == wire::Opcode::kRings && size.has_value());
    auto memory = net::RingMemory::map(client->peer().take_descriptor(), size->bytes);
    EXPECT_TRUE(memory.has_value());
    ring.use(std::move(*memory), net::RingStream::Side::kClient);
    return client;
  }
  bool nothing_held() {
    return rig->until([&] {
      return rig->stat("node", "rings") == 0 && rig->stat("node", "views") == 0 && rig->stat("node", "leases") == 0 &&
             rig->stat("node", "pinned_bytes") == 0 && rig->stat("node", "ops") == 0 &&
             rig->stat("node", "unfinished_bytes") == 0 && rig->stat("store", "pool_bytes_pinned") == 0;
    });
  }

  Records records{small_namespace()};
  std::unique_ptr<Rig> rig;
};

TEST_F(SessionRingTest, RequestsBodiesAndViewsComeThrough) {
  start();
  const auto client = connect(kBoth);
  ASSERT_EQ(client->features(), kBoth);
  EXPECT_EQ(rig->stat("node", "rings"), 1U);
  EXPECT_EQ(client->call(wire::frame({.request_id = 1}, wire::Ping{})).header.opcode, wire::Opcode::kPingReply);
  const std::uint32_t ns = client->open(records.ns());
  const std::uint64_t id = client->new_id();
  client->send(records.put(id, ns, 0, 40));
  client->send(records.put_head(id, 0, 40, 0, 3), records.put_body(0, 40, 0, 3));  // three times the ring
  EXPECT_EQ(client->next().header.status, Code::kOk);
  client->send(Records::get(client->new_id(), ns, 0, 40));
  const net::Received got = client->next();
  ASSERT_EQ(got.header.opcode, wire::Opcode::kGetView);
  EXPECT_GT(rig->stat("store", "pool_bytes_pinned"), 0U);
  client->vanish();
  EXPECT_TRUE(nothing_held());
}

TEST_F(SessionRingTest, BytesComeThroughWhereNoMemoryIsLent) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 40));
  const auto client = connect();
  ASSERT_EQ(client->features(), wire::kFeatureRings);
  const std::uint32_t ns = client->open(records.ns());
  client->send(Records::get(client->new_id(), ns, 0, 40));
  std::vector<std::byte> bytes;
  for (bool last = false; !last;) {
    const net::Received got = client->next();
    ASSERT_EQ(got.header.opcode, wire::Opcode::kGetData);
    bytes.insert(bytes.end(), got.payload.begin(), got.payload.end());
    last = got.header.last();
  }
  EXPECT_EQ(bytes, records.put_body(0, 40, 0, 3));
}

TEST_F(SessionRingTest, AreForThoseWhoAskOnASocketThatCanCarryThem) {
  NodeOptions options = test_options();
  options.listen = {"tcp://127.0.0.1:0"};
  start(options);
  EXPECT_EQ(rig->connect()->features(), 0U);
  EXPECT_EQ(rig->connect_tcp(kBoth)->features(), 0U);
  EXPECT_EQ(rig->stat("node", "rings"), 0U);
}

TEST_F(SessionRingTest, CanBeSwitchedOffAndAreBounded) {
  NodeOptions options = test_options();
  options.rings = false;
  start(options);
  EXPECT_EQ(connect(kBoth)->features(), wire::kFeatureSharedMemory);
  options.rings = true;
  options.limits.rings_max = 1;
  start(options);
  const auto first = connect();
  EXPECT_EQ(first->features(), wire::kFeatureRings);
  const auto second = connect();
  EXPECT_EQ(second->features(), 0U) << "there are no more";
  EXPECT_EQ(second->call(wire::frame({.request_id = 1}, wire::Ping{})).header.opcode, wire::Opcode::kPingReply);
  first->vanish();
  ASSERT_TRUE(nothing_held());
  EXPECT_EQ(connect()->features(), wire::kFeatureRings);
}

// Whatever a client was doing when it went: between HELLO and its first message, within a message, with a lease.
TEST_F(SessionRingTest, AClientThatGoesAtAnyStepLeavesNothing) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 4));
  for (int step = 0; step < 5; ++step) {
    SCOPED_TRACE(step);
    if (step == 0) {
      const auto client = rig->connect(true, kBoth);  // never looks at its rings
      client->vanish();
      ASSERT_TRUE(nothing_held());
      continue;
    }
    const auto client = connect(kBoth);
    const std::uint32_t ns = client->open(records.ns());
    const auto keys = Records::keys(0, 4);
    const std::vector<std::uint16_t> zero = {0};
    if (step == 2) {
      const wire::Match match{
          .ns = ns, .lease_ms = 60'000, .blocks = 4, .shards = zero, .groups = zero, .keys = {keys, 16, true}};
      ASSERT_EQ(client->call(wire::frame({.request_id = 77}, match)).header.status, Code::kOk);
      ASSERT_GT(rig->stat("store", "pool_bytes_pinned"), 0U);
    }
    if (step == 3) {
      client->send(records.put(78, ns, 100, 4));
      client->send(records.put_head(78, 100, 4, 0, 3), records.put_body(100, 4, 0, 1));  // a third of it
      client->peer().connection->flush();
      ASSERT_TRUE(rig->until([&] { return rig->stat("node", "unfinished_bytes") > 0; }));
    }
    if (step == 4) client->send(Records::get(79, ns, 0, 4));
    client->vanish();
    ASSERT_TRUE(nothing_held());
  }
}

}  // namespace
}  // namespace kvd::node
