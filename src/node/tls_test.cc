// Encrypted connections at a node: who is let in by a certificate, who is not, and what strangers may take up.
#include <gtest/gtest.h>

#include "auth/credentials.h"
#include "node/testing/resp_client.h"
#include "node/testing/rig.h"
#include "tls/testing/certificates.h"

namespace kvd::node {
namespace {

class NodeTls : public testing::Test {
 protected:
  void start(const std::string& credentials, bool knows_clients, NodeOptions options = test_options()) {
    files = pki.server_files(knows_clients);
    if (knows_clients) files.crl = pki.write_crl({});
    context = *tls::Context::make_server(files);
    options.tls = context;
    if (!credentials.empty()) {
      options.authority = std::make_shared<const auth::Authority>(auth::parse_credentials(credentials, "c").value());
    }
    options.wall_clock = [this] { return wall; };
    rig = std::make_unique<Rig>(options);
  }
  // A client's end of a connection that the node has adopted.
  std::unique_ptr<io::Stream> dial(const tls::Pki::Files& own, bool resp = false) {
    auto [near, far] = net::make_socket_pair();
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
