// Encrypted connections at a node: who is let in by a certificate, who is not, and what strangers may take up.
#include <sys/socket.h>

#include <gtest/gtest.h>

#include "auth/testing/tokens.h"
#include "node/testing/resp_client.h"
#include "node/testing/rig.h"
#include "tls/testing/certificates.h"
#include "tls/testing/pair.h"

namespace kvd::node {
namespace {

class NodeTls : public testing::Test {
 protected:
  void start(const std::string& credentials, bool knows_clients, NodeOptions options = test_options()) {
    files = pki.server_files(knows_clients);
    if (knows_clients) files.crl = pki.write_crl({});
    context = *tls::Context::make_server(files);
    options.tls = context;
    if (!credentials.empty()) options.authority = auth::shared_authority(credentials);
    options.wall_clock = [this] { return wall; };
    rig = std::make_unique<Rig>(options);
  }
  // A client's end of a connection that the node has adopted. `send_buffer`: what the kernel takes of the node's bytes
  // while the client does not read, about.
  std::unique_ptr<io::Stream> dial(const tls::Pki::Files& own, bool resp = false, int send_buffer = 0) {
    auto [near, far] = net::make_socket_pair();
    if (send_buffer > 0) {
      EXPECT_EQ(::setsockopt(far.get(), SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer), 0);
    }
    auto stream = *context->wrap(net::make_socket_stream(std::move(far)), {}, rig->options.limits.handshake_limit);
    EXPECT_TRUE(resp ? rig->node->adopt_resp(std::move(stream)) : rig->node->adopt(std::move(stream)));
    const auto client = *tls::Context::make_client({.ca = pki.ca(), .certificate = own.certificate, .key = own.key});
    return *client->wrap(net::make_socket_stream(std::move(near)), "localhost");
  }
  std::unique_ptr<RawClient> hello(const tls::Pki::Files& own) {
    auto client = std::make_unique<RawClient>(*rig->loop, dial(own), false);
    client->send(wire::frame({}, wire::Hello{.features = 0, .name = "test"}));
    return client;
  }
  // A client that has asked for record 0 and does not read the answer.
  std::unique_ptr<RawClient> deaf(const Records& records, bool encrypted = true) {
    std::unique_ptr<RawClient> client;
    if (encrypted) {
      client = std::make_unique<RawClient>(*rig->loop, dial({}, false, 4096));
    } else {
      client = rig->connect();
    }
    const std::uint32_t ns = client->open(records.ns());
    client->send(Records::get(client->new_id(), ns, 0, encrypted ? 1 : 3));
    client->peer().connection->hold();
    return client;
  }
  void run_for(Duration time) {
    const Time end = rig->loop->now() + time;
    rig->until([&] { return rig->loop->now() >= end; });
  }
  [[nodiscard]] bool logged(const std::string& text) {
    return rig->until([&] { return rig->log.count(text) > 0; });
  }

  auth::WallSeconds wall =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  tls::Pki pki;
  tls::ServerFiles files;
  std::shared_ptr<tls::Context> context;
  std::unique_ptr<Rig> rig;
};

TEST_F(NodeTls, ACertificateFixesTenantAndRights) {
  start("subject engine-1 tenant=a rights=read\n", true);
  const auto client = hello(pki.issue({.common_name = "engine-1"}));
  const auto reply = client->next();
  EXPECT_EQ(reply.header.status, Code::kOk);
  EXPECT_EQ(wire::decode<wire::HelloReply>(reply.header, reply.meta)->features, 0U) << "no token is asked for";
  Namespace other = small_namespace();
  other.tenant = "b";
  const auto refused = client->call(wire::frame({.request_id = client->new_id()}, wire::Open{other}));
  EXPECT_EQ(refused.header.status, Code::kInvalid);
  Namespace own = small_namespace();
  own.tenant = "a";
  const Records records(own);
  const std::uint32_t handle = client->open(own);
  const auto put = client->call(records.put(client->new_id(), handle, 0, 1));
  EXPECT_EQ(wire::error_text(put.meta), "the credential does not allow this");
}

TEST_F(NodeTls, ATenantsConnectionsAreBounded) {
  start("tenant a connections=1\nsubject engine-1 tenant=a rights=read\n", true);
  const auto own = pki.issue({.common_name = "engine-1"});
  const auto client = hello(own);
  EXPECT_EQ(client->next().header.status, Code::kOk);
  const auto second = hello(own);
  const auto refused = second->next();
  EXPECT_EQ(refused.header.status, Code::kBusy);
  EXPECT_EQ(wire::error_text(refused.meta), "the tenant has as many connections as it may");
  EXPECT_TRUE(second->ended());
  tls::End redis(*rig->loop, dial(own, true));
  const std::string ping = resp_command({"PING"});
  redis.send({as_bytes(ping).begin(), as_bytes(ping).end()});
  EXPECT_TRUE(rig->until([&] { return redis.ended; }));
  EXPECT_TRUE(as_text(redis.got).starts_with("-ERR max number of clients reached")) << as_text(redis.got);
  EXPECT_EQ(rig->stat("node", "connections_refused"), 2U);
}

TEST_F(NodeTls, AGoodCertificateOfNobodyIsRefused) {
  start("subject engine-1 tenant=a rights=read\n", true);
  const auto client = hello(pki.issue({.common_name = "engine-2"}));
  EXPECT_EQ(wire::error_text(client->next().meta), "unauthorized");
  EXPECT_TRUE(logged("its certificate is nobody's"));
}

TEST_F(NodeTls, AHandshakeThatIsRefusedIsInTheLogAndCounted) {
  start("", true);
  const auto own = pki.issue({.common_name = "engine"});
  pki.write_crl({own.serial});
  ASSERT_TRUE(context->replace(files).has_value());
  const auto client = hello(own);
  EXPECT_TRUE(client->ended());
  EXPECT_TRUE(logged("certificate revoked"));
  EXPECT_EQ(rig->stat("node", "unauthorized"), 1U);
}

TEST_F(NodeTls, AnExpiredCertificateEndsItsConnections) {
  start("subject engine tenant=a rights=read\n", true);
  const auto client = hello(pki.issue({.common_name = "engine", .valid_until_s = 600}));
  EXPECT_EQ(client->next().header.status, Code::kOk);
  EXPECT_EQ(client->call(wire::frame({.request_id = client->new_id()}, wire::Ping{})).header.status, Code::kOk);
  wall += 700;
  client->send(wire::frame({.request_id = client->new_id()}, wire::Ping{}));
  EXPECT_TRUE(client->ended());
  EXPECT_TRUE(logged("expired certificate"));
}

TEST_F(NodeTls, ARevokedCertificateEndsItsConnectionsAndNoOthers) {
  start("", true);
  const auto bad = pki.issue({.common_name = "bad"});
  const auto revoked = hello(bad), good = hello(pki.issue({.common_name = "good"}));
  EXPECT_EQ(revoked->next().header.status, Code::kOk);
  EXPECT_EQ(good->next().header.status, Code::kOk);
  pki.write_crl({bad.serial});
  ASSERT_TRUE(context->replace(files).has_value());
  rig->node->judge_certificates();
  EXPECT_TRUE(revoked->ended());
  EXPECT_TRUE(logged("certificate revoked"));
  EXPECT_EQ(good->call(wire::frame({.request_id = good->new_id()}, wire::Ping{})).header.status, Code::kOk);
}

TEST_F(NodeTls, WhoShakesHandsTakesAStrangersPlaceUntilADeadline) {
  NodeOptions options = test_options();
  options.limits.strangers_max = 1;
  options.limits.stranger_grace = std::chrono::minutes(1);
  options.limits.handshake_limit = std::chrono::milliseconds(50);
  start("", false, options);
  auto [near, far] = net::make_socket_pair();
  EXPECT_TRUE(
      rig->node->adopt(*context->wrap(net::make_socket_stream(std::move(far)), {}, options.limits.handshake_limit)));
  auto [near2, far2] = net::make_socket_pair();
  EXPECT_EQ(rig->node->adopt(*context->wrap(net::make_socket_stream(std::move(far2)))).error().code, Code::kBusy);
  EXPECT_TRUE(logged("the TLS handshake took too long"));
  EXPECT_TRUE(rig->until([&] { return rig->stat("node", "connections") == 0; }));
  const auto client = hello({});
  EXPECT_EQ(client->next().header.status, Code::kOk);
  const auto second = hello({});
  EXPECT_EQ(second->next().header.status, Code::kOk) << "who has said HELLO is no stranger";
}

TEST_F(NodeTls, WhoNeverSpeaksGivesItsPlaceToANewcomer) {
  NodeOptions options = test_options();
  options.limits.strangers_max = 3;
  options.limits.stranger_grace = Millis(1);
  start("", false, options);
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int round = 0; round < 5; ++round) {
    for (const bool resp : {false, true, false, true}) {
      auto [near, far] = net::make_socket_pair();
      auto stream = *context->wrap(net::make_socket_stream(std::move(far)));
      EXPECT_TRUE(resp ? rig->node->adopt_resp(std::move(stream)) : rig->node->adopt(std::move(stream)));
      silent.push_back(std::make_unique<RawClient>(*rig->loop, std::move(near), false));
      run_for(Millis(2));
    }
    const auto client = hello({});
    EXPECT_EQ(client->next().header.status, Code::kOk) << round;
  }
  EXPECT_TRUE(silent.front()->ended());
  EXPECT_FALSE(silent.back()->peer().closed.has_value()) << "the oldest go first";
  EXPECT_GE(rig->stat("node", "connections_silent"), 20U - 3);
}

TEST_F(NodeTls, WhoDoesNotReadIsCutAsWithoutEncryption) {
  NodeOptions options = test_options();
  options.limits.stall_limit = Millis(150);
  start("", false, options);
  const Records records(small_namespace(3, 40 << 10));  // with one call all of it is encrypted
  ASSERT_TRUE(rig->put_all(records, 0, 3));
  for (const bool encrypted : {false, true}) {
    const std::uint64_t stalled = rig->stat("net", "stalled");
    const auto client = deaf(records, encrypted);
    if (encrypted) {
      EXPECT_TRUE(rig->until([&] { return rig->stat("net", "owned_bytes") > 100'000; })) << "counted as what waits";
      EXPECT_EQ(rig->stat("node", "pinned_bytes"), 0U);
    }
    EXPECT_TRUE(rig->until([&] { return rig->stat("net", "stalled") > stalled; })) << encrypted;
    EXPECT_TRUE(rig->until([&] { return rig->stat("node", "connections") == 0; })) << encrypted;
    EXPECT_EQ(rig->stat("net", "owned_bytes"), 0U);
  }
}

TEST_F(NodeTls, WhoReadsLateIsNotCut) {
  NodeOptions options = test_options();
  options.limits.stall_limit = Millis(400);
  options.limits.progress_bytes_min = 1;
  start("", false, options);
  const Records records(small_namespace(3, 40 << 10));
  ASSERT_TRUE(rig->put_all(records, 0, 1));
  const auto client = deaf(records);
  EXPECT_TRUE(rig->until([&] { return rig->stat("net", "owned_bytes") > 100'000; }));
  client->peer().connection->resume();
  std::size_t got = 0;
  for (bool last = false; !last;) {
    const auto part = client->next();
    got += part.payload.size();
    last = part.header.last() || part.payload.empty();
  }
  EXPECT_EQ(got, 120U << 10);
  run_for(Millis(900));
  EXPECT_EQ(rig->stat("node", "connections"), 1U);
  EXPECT_EQ(rig->stat("net", "owned_bytes"), 0U);
}

TEST_F(NodeTls, ARedisClientThatDoesNotReadIsCutToo) {
  NodeOptions options = test_options();
  options.limits.stall_limit = Millis(150);
  start("", false, options);
  ASSERT_EQ(RespClient(*rig).call({"SET", "k", resp_text(120'000, 1)}, "+OK\r\n"), "+OK\r\n");
  const auto bytes_of = [](const std::string& text) {
    const Bytes bytes = as_bytes(text);
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  tls::End client(*rig->loop, dial({}, true, 4096));
  client.send(bytes_of(resp_command({"PING"})));
  ASSERT_TRUE(rig->until([&] { return client.got.size() == 7; }));
  client.send(bytes_of(resp_command({"GET", "k"})));
  ASSERT_TRUE(client.stream().want(io::Watch::kNone).has_value());
  EXPECT_TRUE(rig->until([&] { return rig->stat("net", "owned_bytes") > 100'000; }));
  EXPECT_TRUE(rig->until([&] { return rig->stat("net", "stalled") == 1; }));
  EXPECT_TRUE(rig->until([&] { return rig->stat("node", "resp_connections") == 0; }));
  EXPECT_EQ(rig->stat("net", "owned_bytes"), 0U);
}

// 24 connections that keep a slice of 128 KiB each would be 3 MiB.
TEST_F(NodeTls, WhatIsEncryptedForThoseWhoDoNotReadIsBounded) {
  NodeOptions options = test_options();
  options.limits.reply_bytes_all_max = 128 << 10;
  start("", false, options);
  const Records records(small_namespace(3, 80 << 10));
  ASSERT_TRUE(rig->put_all(records, 0, 1));
  std::vector<std::unique_ptr<RawClient>> clients;
  std::uint64_t most = 0;
  for (int i = 0; i < 24; ++i) {
    clients.push_back(deaf(records));
    run_for(Millis(5));
    most = std::max(most, rig->stat("net", "owned_bytes"));
  }
  EXPECT_LT(most, (128U + 256 + 24 * 68) << 10);
  EXPECT_GT(most, std::uint64_t{1} << 20) << "they do not read";
  for (const auto& client : clients) {
    client->peer().connection->resume();
    EXPECT_EQ(client->next().header.status, Code::kOk) << "all of it comes to who reads";
  }
}

TEST_F(NodeTls, OtherMachinesMayComeWhereCertificatesAreWanted) {
  NodeOptions options = test_options();
  options.listen = {"tls://0.0.0.0:0"};
  start("", true, options);
  ASSERT_NE(rig->node, nullptr);
  EXPECT_TRUE(rig->node->addresses().front().starts_with("tls://0.0.0.0:"));

  const auto loop = *io::make_real_loop();
  RecordingLog log;
  std::string why;
  options.tls = *tls::Context::make_server(pki.server_files(false));
  EXPECT_FALSE(Node::start(*loop, log, options, &why).has_value());
  EXPECT_NE(why.find("other machines could reach this address"), std::string::npos) << why;
  options.tls = nullptr;
  EXPECT_FALSE(Node::start(*loop, log, options, &why).has_value());
  EXPECT_NE(why.find("needs a certificate"), std::string::npos) << why;
}

}  // namespace
}  // namespace kvd::node
