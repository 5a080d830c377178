// The node as a whole: matches and leases, shaping, cancellation, figures, counting of messages and system calls,
// drain.
#include "node/node.h"

#include <map>

#include <gtest/gtest.h>

#include "http/testing/ask.h"
#include "node/testing/rig.h"

namespace kvd::node {
namespace {

using net::Received;

wire::MatchReply match(RawClient& client, std::uint32_t ns, std::size_t first, std::size_t count,
                       std::uint32_t lease_ms = 0, std::vector<std::byte>* keep = nullptr) {
  static std::vector<std::byte> meta;
  const auto keys = Records::keys(first, count);
  const wire::Match request{.ns = ns,
                            .promote = true,
                            .lease_ms = lease_ms,
                            .blocks = static_cast<std::uint32_t>(count),
                            .shards = {0},
                            .groups = {0},
                            .keys = {keys, 16, true}};
  const Received reply = client.call(wire::frame({.request_id = client.new_id()}, request));
  EXPECT_EQ(reply.header.status, Code::kOk) << wire::error_text(reply.meta);
  std::vector<std::byte>& kept = keep != nullptr ? *keep : meta;
  kept = reply.meta;
  const auto decoded = wire::decode<wire::MatchReply>(reply.header, kept);
  return decoded ? *decoded : wire::MatchReply{};
}

// Without credentials a client may name its tenant by any bytes, and figures of the depot still have to be readable.
TEST(NodeMetrics, TenantsOfAnyBytesAreShownInPlainOnes) {
  Rig rig;
  Namespace ns = small_namespace();
  ns.tenant = "a\xff\n\"%";
  auto client = rig.connect();
  client->open(ns);
  EXPECT_NE(rig.node->stats_json().find(R"("a%FF%0A%22%25":{)"), std::string::npos) << rig.node->stats_json();
}

TEST(NodeMatch, FindsTheUsablePrefix) {
  Rig rig;
  const Records records(small_namespace());
  ASSERT_TRUE(rig.put_all(records, 0, 5));
  auto client = rig.connect();
  const std::uint32_t ns = client->open(records.ns());
  const std::string_view none = "\"match_residence\":{\"p50\":0,\"p99\":0}";
  EXPECT_NE(rig.node->stats_json().find(none), std::string::npos);
  const wire::MatchReply reply = match(*client, ns, 0, 8);
  EXPECT_EQ(rig.node->stats_json().find(none), std::string::npos) << "counted when its answer is in the socket";
  EXPECT_EQ(reply.prefix_blocks, 5U);
  EXPECT_EQ(reply.lease, 0U);
  EXPECT_EQ(reply.tiers[4], static_cast<std::byte>(Tier::kPool));
  EXPECT_EQ(reply.tiers[5], static_cast<std::byte>(Tier::kNone));
  EXPECT_EQ(match(*client, ns, 50, 3).prefix_blocks, 0U);
}

TEST(NodeMatch, AnswersForAllShardsAndBoundsTheWork) {
  Rig rig;
  const Records records(small_namespace());
  ASSERT_TRUE(rig.put_all(records, 0, 2));
  auto client = rig.connect();
  const std::uint32_t ns = client->open(records.ns());
  const auto keys = Records::keys(0, 2);
  wire::Match request{.ns = ns, .blocks = 2, .shards = {0, 1}, .groups = {0}, .keys = {keys, 16, true}};
  Received reply = client->call(wire::frame({.request_id = 60}, request));
  EXPECT_EQ(wire::decode<wire::MatchReply>(reply.header, reply.meta)->prefix_blocks, 0U);  // shard 1 has nothing
  const auto many = Records::keys(0, 4096 * 2);
  request = {
      .ns = ns, .blocks = 4096, .shards = std::vector<std::uint16_t>(64), .groups = {0, 0}, .keys = {many, 16, true}};
  reply = client->call(wire::frame({.request_id = 61}, request));
  EXPECT_EQ(reply.header.status, Code::kInvalid);
}

TEST(NodeLease, PinsUntilItEnds) {
  Rig rig;
  const Records records(small_namespace());
  ASSERT_TRUE(rig.put_all(records, 0, 5));
  auto client = rig.connect();
  const std::uint32_t ns = client->open(records.ns());
  const auto pinned = [&] { return rig.stat("store", "pool_bytes_pinned"); };
  const wire::MatchReply reply = match(*client, ns, 0, 5, 60'000);
  EXPECT_NE(reply.lease, 0U);
  EXPECT_EQ(rig.stat("node", "leases"), 1U);
  EXPECT_GE(pinned(), 5U * 3 * 4096);
  auto stranger = rig.connect();
  EXPECT_EQ(stranger->call(wire::frame({.request_id = 1}, wire::Unpin{reply.lease})).header.status, Code::kNotFound);
  EXPECT_EQ(client->call(wire::frame({.request_id = 70}, wire::Unpin{reply.lease})).header.status, Code::kOk);
  EXPECT_EQ(pinned(), 0U);
  EXPECT_EQ(client->call(wire::frame({.request_id = 71}, wire::Unpin{reply.lease})).header.status, Code::kNotFound);

  match(*client, ns, 0, 5, 1);  // expires
  EXPECT_TRUE(rig.until([&] { return rig.stat("node", "leases_expired") == 1 && pinned() == 0; }));
  match(*client, ns, 0, 5, 60'000);  // ends with its client
  match(*client, ns, 0, 3, 60'000);
  EXPECT_EQ(rig.stat("node", "leases"), 2U);
  client->vanish();
  EXPECT_TRUE(rig.until([&] { return rig.stat("node", "leases") == 0 && pinned() == 0; }));
}

TEST(NodeLease, LeasesAreBounded) {
  NodeOptions options = test_options();
  options.limits.leases_max = 1;
  Rig rig(options);
  const Records records(small_namespace());
  ASSERT_TRUE(rig.put_all(records, 0, 2));
  auto client = rig.connect();
  const std::uint32_t ns = client->open(records.ns());
  EXPECT_NE(match(*client, ns, 0, 2, 60'000).lease, 0U);
  const wire::MatchReply second = match(*client, ns, 0, 2, 60'000);
  EXPECT_EQ(second.lease, 0U);
  EXPECT_EQ(second.prefix_blocks, 2U);
}

// A record that is leased again costs no more of the pool, but each of its pins costs memory.
TEST(NodeLease, PinsAreBoundedForTheNodeAndForAConnection) {
  NodeOptions options = test_options();
  options.limits.lease_pins_max = 8;  // 4 for a connection
  Rig rig(options);
  const Records records(small_namespace());
  ASSERT_TRUE(rig.put_all(records, 0, 5));
  auto client = rig.connect();
  const std::uint32_t ns = client->open(records.ns());
  const wire::MatchReply first = match(*client, ns, 0, 3, 60'000);
  EXPECT_NE(first.lease, 0U);
  const wire::MatchReply second = match(*client, ns, 0, 3, 60'000);
  EXPECT_NE(second.lease, 0U) << "of its first record";
  EXPECT_EQ(match(*client, ns, 0, 3, 60'000).lease, 0U);
  auto other = rig.connect();
  const std::uint32_t other_ns = other->open(records.ns());
  EXPECT_NE(match(*other, other_ns, 0, 5, 60'000).lease, 0U) << "it has a share of its own";
  auto third = rig.connect();
  EXPECT_EQ(match(*third, third->open(records.ns()), 0, 1, 60'000).lease, 0U) << "the node has no more";
  EXPECT_EQ(client->call(wire::frame({.request_id = 70}, wire::Unpin{first.lease})).header.status, Code::kOk);
  EXPECT_NE(match(*client, ns, 0, 3, 60'000).lease, 0U);
  client->vanish();
  other->vanish();
  EXPECT_TRUE(rig.until([&] { return rig.stat("node", "leases") == 0; }));
  EXPECT_EQ(rig.stat("store", "pool_bytes_pinned"), 0U);
}

// One request per operation, and far fewer system calls than slabs: a document of 54 blocks x 30 layers.
TEST(NodeCount, AMatchAndAMultigetOfALongDocumentCostFewMessagesAndSystemCalls) {
  NodeOptions options = test_options();
  options.listen = {"tcp://127.0.0.1:0"};
  Rig rig(options);
  const Records records(small_namespace(30, 8192));
  ASSERT_TRUE(rig.put_all(records, 0, 54));
  auto client = rig.connect_tcp();
  const std::uint32_t ns = client->open(records.ns());
  const net::NetCounters& mine = client->peer().counters;
  const auto now = [&](const char* name) { return rig.stat("net", name); };

  std::uint64_t in = now("messages_in"), out = now("messages_out"), sends = now("send_calls");
  std::uint64_t my_sends = mine.send_calls.value();
  EXPECT_EQ(match(*client, ns, 0, 54, 1000).prefix_blocks, 54U);
  EXPECT_EQ(now("messages_in") - in, 1U);
  EXPECT_EQ(now("messages_out") - out, 1U);
  EXPECT_EQ(now("send_calls") - sends, 1U);
  EXPECT_EQ(mine.send_calls.value() - my_sends, 1U);

  in = now("messages_in"), out = now("messages_out"), sends = now("send_calls"), my_sends = mine.send_calls.value();
  const std::uint64_t my_recvs = mine.recv_calls.value();
  const std::uint64_t id = client->new_id();
  client->send(Records::get(id, ns, 0, 54));
  std::uint64_t messages = 0;
  for (bool last = false; !last; ++messages) last = client->next().header.last();
  const std::uint64_t bytes = 54 * 30 * 8192;  // 13 MB
  EXPECT_EQ(now("messages_in") - in, 1U);
  EXPECT_EQ(mine.send_calls.value() - my_sends, 1U);
  EXPECT_EQ(now("messages_out") - out, messages);
  EXPECT_LE(messages, 2 + bytes / (1U << 20));               // not 1,620 slabs
  EXPECT_LE(now("send_calls") - sends, 20 + bytes / 65536);  // a socket that takes little at a time may need more calls
  EXPECT_LE(mine.recv_calls.value() - my_recvs, 20 + bytes / 65536);
}

TEST(NodeShape, ReadsAreSlowedDownAndCanBeCancelledOrTimeOut) {
  NodeOptions options = test_options();
  options.shape_read_bytes_per_s = 20'000'000;
  Rig rig(options);
  const Records records(small_namespace(4, 262144));
  ASSERT_TRUE(rig.put_all(records, 0, 4));  // 4 MiB: 210 ms
  auto client = rig.connect();
  const std::uint32_t ns = client->open(records.ns());
  const Time start = rig.loop->now();
  std::uint64_t id = client->new_id();
  client->send(Records::get(id, ns, 0, 1));
  for (bool last = false; !last;) last = client->next().header.last();
  EXPECT_GE(rig.loop->now() - start, std::chrono::milliseconds(44));  // 1 MiB, less the first 8 ms

  id = client->new_id();
  client->send(Records::get(id, ns, 0, 4));
  client->send(wire::frame({.request_id = id}, wire::Cancel{}));
  Received last = client->next();
  while (!last.header.last()) last = client->next();
  EXPECT_EQ(last.header.status, Code::kCancelled);

  client->send(Records::get(client->new_id(), ns, 0, 4, false, 0, 0, 20));
  last = client->next();
  while (!last.header.last()) last = client->next();
  EXPECT_EQ(last.header.status, Code::kTimeout);
  EXPECT_EQ(rig.stat("node", "timeouts"), 1U);
  EXPECT_TRUE(rig.until([&] { return rig.stat("node", "pinned_bytes") == 0; }));
  EXPECT_EQ(client->call(wire::frame({.request_id = 900}, wire::Ping{})).header.opcode, wire::Opcode::kPingReply);
}

TEST(NodeDrain, LetsRequestsEndAndTakesNoMore) {
  NodeOptions options = test_options();
  options.listen = {"tcp://127.0.0.1:0"};
  options.shape_read_bytes_per_s = 20'000'000;
  Rig rig(options);
  const Records records(small_namespace(4, 262144));
  ASSERT_TRUE(rig.put_all(records, 0, 1));
  auto busy = rig.connect();
  auto idle = rig.connect();
  const std::uint32_t ns = busy->open(records.ns());
  const std::uint64_t id = busy->new_id();
  busy->send(Records::get(id, ns, 0, 1));
  ASSERT_TRUE(rig.until([&] { return rig.stat("node", "requests_get") == 1; }));
  bool drained = false;
  rig.node->drain(std::chrono::seconds(10), [&] { drained = true; });
  const std::uint64_t refused = busy->new_id();
  busy->send(Records::get(refused, ns, 0, 1));
  std::map<std::uint64_t, Code> ends;
  while (ends.size() < 2) {
    const Received message = busy->next();
    if (message.header.last()) ends[message.header.request_id] = message.header.status;
  }
  EXPECT_EQ(ends[id], Code::kOk);
  EXPECT_EQ(ends[refused], Code::kUnavailable);
  EXPECT_TRUE(idle->ended());
  EXPECT_TRUE(rig.until([&] { return drained; }));
  auto [near, far] = net::make_socket_pair();
  EXPECT_EQ(rig.node->adopt(net::make_socket_stream(std::move(far))).error().code, Code::kUnavailable);
}

TEST(NodeDrain, AMatchThatIsUnderWayIsAnswered) {
  Rig rig;
  const Records records(small_namespace(1, 512));
  for (std::size_t first = 0; first < 4096; first += 1024) ASSERT_TRUE(rig.put_all(records, first, 1024));
  auto client = rig.connect();
  const auto keys = Records::keys(0, 4096);
  const wire::Match match{.ns = client->open(records.ns()),
                          .blocks = 4096,
                          .shards = std::vector<std::uint16_t>(16),
                          .groups = {0},
                          .keys = {keys, 16, true}};
  client->send(wire::frame({.request_id = client->new_id()}, match));
  ASSERT_TRUE(rig.until([&] { return rig.stat("node", "op_keys") > 0; }));
  rig.node->drain(std::chrono::seconds(10), [] {});
  const Received reply = client->next();
  EXPECT_EQ(reply.header.opcode, wire::Opcode::kMatchReply);
  EXPECT_EQ(reply.header.status, Code::kOk);
  EXPECT_TRUE(client->ended());
}

TEST(NodeDrain, DoesNotWaitForEver) {
  Rig rig;
  const Records records(small_namespace());
  auto client = rig.connect();
  client->send(records.put(client->new_id(), client->open(records.ns()), 0, 1));
  ASSERT_TRUE(rig.until([&] { return rig.stat("node", "ops") == 1; }));
  bool drained = false;
  rig.node->drain(std::chrono::milliseconds(20), [&] { drained = true; });
  EXPECT_TRUE(rig.until([&] { return drained; }));
  EXPECT_TRUE(client->ended());
}

TEST(NodeHttp, TellsHealthAndMetrics) {
  NodeOptions options = test_options();
  options.http = "127.0.0.1:0";
  Rig rig(options);
  const Records records(small_namespace());
  ASSERT_TRUE(rig.put_all(records, 0, 3));
  const std::string address = rig.node->http_address();
  EXPECT_TRUE(http::ask(address, "GET /healthz HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));
  const std::string metrics = http::ask(address, "GET /metrics HTTP/1.0\r\n\r\n");
  EXPECT_NE(metrics.find("\nkvdepot_store_puts_total 3\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("\nkvdepot_ready 1\n"), std::string::npos);
  EXPECT_NE(metrics.find("\nkvdepot_put_seconds_count 1\n"), std::string::npos);
  EXPECT_NE(metrics.find("\nkvdepot_tenant_pool_bytes{tenant=\"default\"} 49152\n"), std::string::npos) << metrics;
  EXPECT_EQ(metrics.find("kvdepot_tenant_pool_quota_bytes"), std::string::npos) << "there is none";
  rig.node->store().set_quotas(std::vector<store::TenantQuota>{{"default", {.pool_bytes = 32768}}});
  EXPECT_NE(http::ask(address, "GET /metrics HTTP/1.0\r\n\r\n")
                .find("\nkvdepot_tenant_pool_quota_bytes{tenant=\"default\"} 32768\n"),
            std::string::npos);
  EXPECT_TRUE(http::ask(address, "GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404 "));
  rig.node->drain(std::chrono::seconds(1), [] {});
  EXPECT_TRUE(http::ask(address, "GET /healthz HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 503 "));
}

TEST(NodeStart, SaysWhatIsWrongWithAnAddress) {
  const auto loop = *io::make_real_loop();
  NullLog log;
  const auto why_of = [&](const std::string& listen, const std::string& http) {
    NodeOptions options = test_options();
    options.listen = {listen};
    options.http = http;
    std::string why;
    EXPECT_FALSE(Node::start(*loop, log, options, &why).has_value());
    return why;
  };
  NodeOptions options = test_options();
  options.listen = {"tcp://127.0.0.1:0"};
  const auto node = *Node::start(*loop, log, options);
  EXPECT_EQ(
      why_of(node->addresses()[0], ""),
      node->addresses()[0] + ": the address is in use: stop the program that listens there, or choose another address");
  EXPECT_NE(why_of("tcp://0.0.0.0:0", "").find("nobody would have to show a token"), std::string::npos);
  EXPECT_NE(why_of("tcp://0.0.0.0:0", "").find("choose a loopback address"), std::string::npos);
  EXPECT_NE(why_of("here", "").find("an address starts with tcp://"), std::string::npos);
  EXPECT_EQ(why_of("here", "").find("loopback"), std::string::npos);
  const std::string nowhere = why_of("tcp://127.0.0.1:0", "nowhere");
  EXPECT_TRUE(nowhere.starts_with("http://nowhere: an HTTP address is HOST:PORT")) << nowhere;
  EXPECT_EQ(nowhere.find("loopback"), std::string::npos) << nowhere;
  const std::string open = why_of("tcp://127.0.0.1:0", "0.0.0.0:0");
  EXPECT_TRUE(open.ends_with(": choose a loopback address of this machine")) << open;
}

}  // namespace
}  // namespace kvd::node
