// A node with credentials: who gets in, as which tenant, and what it may do.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "auth/authority.h"
#include "auth/testing/tokens.h"
#include "io/sim/sim_disk.h"
#include "node/tenants.h"
#include "node/testing/resp_client.h"
#include "node/testing/rig.h"

namespace kvd::node {
namespace {

using net::Received;

using auth::token_number;

std::string token_line(int n, const std::string& tenant, const std::string& rights, const std::string& expires = "") {
  return auth::token_line(n, "n" + std::to_string(n), tenant, rights, expires);
}

std::shared_ptr<const auth::Authority> authority_of(const std::string& text) {
  return std::make_shared<const auth::Authority>(auth::parse_credentials(text, "c").value());
}

class NodeAuth : public testing::Test {
 protected:
  // Token 1 is of tenant a, 2 of tenant b; both may read and write. 3 reads for a, 4 writes, 5 administers.
  static std::string everybody() {
    return "tenant a requests=2\n" + token_line(1, "a", "read,write") + token_line(2, "b", "read,write") +
           token_line(3, "a", "read") + token_line(4, "a", "write") + token_line(5, "a", "admin", "2000-01-01");
  }
  void start(const std::string& credentials = everybody(), NodeOptions options = test_options(),
             Duration refusal_delay = Millis(1)) {
    options.authority = authority_of(credentials);
    options.wall_clock = [this] { return wall; };
    options.limits.refusal_delay = refusal_delay;
    rig = std::make_unique<Rig>(options);
  }
  std::unique_ptr<RawClient> stranger(std::uint64_t features = wire::kFeatureToken) const {
    auto client = rig->connect(false);
    client->send(wire::frame({}, wire::Hello{.features = features, .name = "test"}));
    return client;
  }
  Received show(RawClient& client, std::string_view token) const {
    return client.call(wire::frame({}, wire::Auth{token}));
  }
  std::unique_ptr<RawClient> enter(int token) const {
    auto client = stranger();
    const Received asked = client->next();
    const auto said = wire::decode<wire::HelloReply>(asked.header, asked.meta);
    EXPECT_TRUE(said && said->features == wire::kFeatureToken);
    const Received answer = show(*client, token_number(token));
    EXPECT_EQ(answer.header.opcode, wire::Opcode::kAuthReply);
    EXPECT_EQ(answer.header.status, Code::kOk) << wire::error_text(answer.meta);
    return client;
  }
  void expect_refused(RawClient& client, const Received& answer) const {
    EXPECT_EQ(answer.header.status, Code::kInvalid);
    EXPECT_EQ(wire::error_text(answer.meta), "unauthorized");
    EXPECT_TRUE(client.ended());
  }
  [[nodiscard]] Namespace of(const std::string& tenant) const {
    Namespace ns = records.ns();
    ns.tenant = tenant;
    return ns;
  }
  // Whether the client's PUT of a record was taken.
  Received put(RawClient& client, std::uint32_t ns, std::size_t key) const {
    const std::uint64_t id = client.new_id();
    client.send(records.put(id, ns, key, 1));
    client.send(records.put_head(id, key, 1, 0, records.layers()), records.put_body(key, 1, 0, records.layers()));
    return client.next();
  }
  // How many of these keys a GET does not find.
  std::size_t missing(RawClient& client, std::uint32_t ns, std::size_t first, std::size_t count) const {
    std::size_t failed = count;
    client.send(Records::get(client.new_id(), ns, first, count));
    for (bool last = false; !last;) {
      const Received m = client.next();
      last = m.header.last();
      const auto data = wire::decode<wire::GetData>(m.header, m.meta);
      EXPECT_TRUE(data.has_value()) << wire::error_text(m.meta);
      if (!data) break;
      failed = wire::count_bits(data->failed);
    }
    return failed;
  }

  // The figures of this tenant.
  [[nodiscard]] nlohmann::json tenant(const std::string& name) const {
    return nlohmann::json::parse(rig->node->stats_json())["tenants"][name];
  }
  // What a client hears who shows this token and is not let in; its connection has ended then.
  std::string turned_away(int token, Code code) const {
    const auto client = stranger();
    client->next();
    const Received answer = show(*client, token_number(token));
    EXPECT_EQ(answer.header.status, code);
    EXPECT_TRUE(client->ended());
    return std::string(wire::error_text(answer.meta));
  }

  Records records{small_namespace()};
  auth::WallSeconds wall = 0;
  std::unique_ptr<Rig> rig;
};

TEST_F(NodeAuth, WithoutCredentialsNobodyIsAskedForAToken) {
  rig = std::make_unique<Rig>();
  const auto client = stranger();
  const Received m = client->next();
  EXPECT_EQ(wire::decode<wire::HelloReply>(m.header, m.meta)->features, 0U);
  client->open(records.ns());
  client->send(wire::frame({}, wire::Auth{token_number(1)}));
  EXPECT_TRUE(client->ended()) << "what was not asked for";
}

TEST_F(NodeAuth, WhoHasNoTokenIsRefused) {
  start();
  const auto client = stranger(0);
  expect_refused(*client, client->next());
  EXPECT_EQ(rig->log.count("refused this host: no token"), 1U);
  EXPECT_EQ(rig->stat("node", "unauthorized"), 1U);
}

TEST_F(NodeAuth, AWrongTokenIsRefusedWithoutAReason) {
  start();
  for (const std::string& token : {token_number(9), std::string("password"), std::string()}) {
    const auto client = stranger();
    client->next();
    expect_refused(*client, show(*client, token));
  }
  EXPECT_EQ(rig->log.count("refused this host: unknown or revoked token"), 1U) << "one line a period and peer";
  EXPECT_EQ(rig->log.count("refused this host"), 1U);
  EXPECT_EQ(rig->stat("node", "unauthorized"), 3U);
}

TEST_F(NodeAuth, NothingIsDoneForAStranger) {
  start();
  const auto asks = stranger();
  asks->next();
  asks->send(wire::frame({.request_id = 1}, wire::Ping{}));
  EXPECT_TRUE(asks->ended());
  const auto twice = stranger();
  twice->next();
  twice->send(wire::frame({}, wire::Hello{.features = wire::kFeatureToken, .name = "test"}));
  EXPECT_TRUE(twice->ended());
  const auto guesses = stranger();
  guesses->next();
  guesses->send(wire::frame({}, wire::Auth{token_number(9)}));
  guesses->send(wire::frame({}, wire::Auth{token_number(1)}));
  EXPECT_TRUE(guesses->ended()) << "a connection has one guess";
  const std::uint64_t refused = rig->stat("node", "unauthorized");
  const auto again = stranger();
  again->next();
  for (int guess = 0; guess < 3; ++guess) {
    again->send(wire::frame({}, wire::Auth{token_number(9)}));
    again->send(wire::frame({}, wire::Hello{.features = wire::kFeatureToken, .name = "test"}));
  }
  again->send(wire::frame({}, wire::Auth{token_number(1)}));
  EXPECT_TRUE(again->ended()) << "nor after another HELLO";
  EXPECT_EQ(rig->stat("node", "unauthorized"), refused + 1);
}

TEST_F(NodeAuth, AStrangerThatSaysNothingIsCut) {
  NodeOptions options = test_options();
  options.limits.handshake_limit = Millis(20);
  start(everybody(), options);
  const auto client = stranger();
  client->next();
  EXPECT_TRUE(client->ended());
}

TEST_F(NodeAuth, StrangersAreBoundedAndTheirPlacesComeBack) {
  NodeOptions options = test_options();
  options.limits.strangers_max = 2;
  options.limits.stranger_grace = std::chrono::minutes(1);
  start(everybody(), options);
  auto first = stranger();
  const auto second = stranger();
  first->next();
  auto [near, far] = net::make_socket_pair();
  EXPECT_EQ(rig->node->adopt(net::make_socket_stream(std::move(far))).error().code, Code::kBusy);
  show(*first, token_number(1));  // is one no more
  enter(2);
}

TEST_F(NodeAuth, WhoNeverSpeaksGivesItsPlaceToANewcomer) {
  NodeOptions options = test_options();
  options.limits.strangers_max = 2;
  options.limits.stranger_grace = Millis(1);
  start(everybody(), options);
  const auto speaks = stranger();  // and does not show its token
  speaks->next();
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 5; ++i) {
    silent.push_back(rig->connect(false));
    const Time end = rig->loop->now() + Millis(2);
    rig->until([&] { return rig->loop->now() >= end; });
    enter(1);
    EXPECT_TRUE(silent.back()->ended());
  }
  EXPECT_EQ(rig->stat("node", "connections_silent"), 5U);
  EXPECT_EQ(show(*speaks, token_number(2)).header.status, Code::kOk) << "silent ones went before it";
}

TEST_F(NodeAuth, WhoHasShownAWrongTokenKeepsItsPlaceUntilItIsAnswered) {
  NodeOptions options = test_options();
  options.limits.strangers_max = 1;
  options.limits.stranger_grace = Duration::zero();
  start(everybody(), options, Millis(300));
  const auto guesses = stranger();
  guesses->next();
  guesses->send(wire::frame({}, wire::Auth{token_number(9)}));
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "unauthorized") == 1; }));
  auto [near, far] = net::make_socket_pair();
  EXPECT_EQ(rig->node->adopt(net::make_socket_stream(std::move(far))).error().code, Code::kBusy)
      << "or guesses would be many";
  EXPECT_TRUE(guesses->ended());
  enter(1);
}

TEST_F(NodeAuth, AnExpiredTokenEndsItsConnections) {
  start();
  wall = 946684799;
  const auto client = enter(5);
  EXPECT_EQ(client->call(wire::frame({.request_id = client->new_id()}, wire::Ping{})).header.status, Code::kOk);
  wall = 946684800;
  client->send(wire::frame({.request_id = client->new_id()}, wire::Ping{}));
  EXPECT_TRUE(client->ended());
  EXPECT_EQ(rig->log.count("refused this host: credential 'n5': expired"), 1U);
  const auto again = stranger();
  again->next();
  expect_refused(*again, show(*again, token_number(5)));
}

TEST_F(NodeAuth, TheTokenSaysWhichTenantItIs) {
  start();
  const auto a = enter(1);
  const auto b = enter(2);
  const std::uint32_t of_a = a->open(of("a"));
  const std::uint32_t of_b = b->open(of("b"));
  EXPECT_EQ(put(*a, of_a, 1).header.status, Code::kOk);
  EXPECT_EQ(missing(*a, of_a, 1, 1), 0U);
  EXPECT_EQ(missing(*b, of_b, 1, 1), 1U);
  for (const char* tenant : {"a", "default"}) {
    const Received m = b->call(wire::frame({.request_id = b->new_id()}, wire::Open{of(tenant)}));
    EXPECT_EQ(m.header.status, Code::kInvalid) << tenant;
    EXPECT_EQ(wire::error_text(m.meta), "the credential is of another tenant");
  }
  EXPECT_EQ(missing(*b, of_b, 1, 1), 1U) << "the connection goes on";
}

TEST_F(NodeAuth, AnotherTenantsRecordsAreNeitherFoundNorRemoved) {
  start();
  const auto a = enter(1);
  const auto b = enter(2);
  const std::uint32_t of_a = a->open(of("a"));
  const std::uint32_t of_b = b->open(of("b"));
  put(*a, of_a, 1);
  const auto keys = Records::keys(1, 1);
  const KeyList list{keys, sizeof(Key), true};
  const Received removed = b->call(
      wire::frame({.request_id = b->new_id()}, wire::Remove{.ns = of_b, .shards = {0}, .groups = {0}, .keys = list}));
  EXPECT_EQ(wire::decode<wire::RemoveReply>(removed.header, removed.meta)->removed, 0U);
  const Received matched = b->call(wire::frame(
      {.request_id = b->new_id()},
      wire::Match{
          .ns = of_b, .promote = false, .lease_ms = 0, .blocks = 1, .shards = {0}, .groups = {0}, .keys = list}));
  EXPECT_EQ(wire::decode<wire::MatchReply>(matched.header, matched.meta)->prefix_blocks, 0U);
  EXPECT_EQ(missing(*a, of_a, 1, 1), 0U);
}

TEST_F(NodeAuth, RightsAreCheckedForEachRequest) {
  start();
  const auto writer = enter(4);
  const std::uint32_t ns = writer->open(of("a"));
  EXPECT_EQ(put(*writer, ns, 1).header.status, Code::kOk);
  Received m = writer->call(Records::get(writer->new_id(), ns, 1, 1));
  EXPECT_EQ(m.header.status, Code::kInvalid);
  EXPECT_EQ(wire::error_text(m.meta), "the credential does not allow this");
  EXPECT_EQ(rig->log.count("refused this host: credential 'n4': a request without the right to it"), 1U);
  const auto guesses = stranger();
  guesses->next();
  expect_refused(*guesses, show(*guesses, token_number(9)));
  EXPECT_EQ(rig->log.count("refused this host: unknown or revoked token"), 1U) << "not hidden by the line before";
  const auto reader = enter(3);
  const std::uint32_t same = reader->open(of("a"));
  EXPECT_EQ(missing(*reader, same, 1, 1), 0U);
  EXPECT_EQ(put(*reader, same, 2).header.status, Code::kInvalid);
  const auto keys = Records::keys(1, 1);
  m = reader->call(
      wire::frame({.request_id = reader->new_id()},
                  wire::Remove{.ns = same, .shards = {0}, .groups = {0}, .keys = {keys, sizeof(Key), true}}));
  EXPECT_EQ(m.header.status, Code::kInvalid);
  EXPECT_EQ(reader->call(wire::frame({.request_id = reader->new_id()}, wire::Stats{})).header.status, Code::kInvalid);
  EXPECT_EQ(missing(*reader, same, 1, 1), 0U) << "the connection goes on";
  const auto admin = enter(5);
  EXPECT_EQ(admin->call(wire::frame({.request_id = admin->new_id()}, wire::Stats{})).header.status, Code::kOk);
  EXPECT_EQ(rig->stat("node", "forbidden"), 4U);
}

TEST_F(NodeAuth, ATenantsRequestsInFlightAreBoundedTogether) {
  start();
  const auto one = enter(1);
  const auto other = enter(1);
  const std::uint32_t ns = one->open(of("a"));
  const std::uint32_t same = other->open(of("a"));
  one->send(records.put(one->new_id(), ns, 1, 1));
  const std::uint64_t second = one->new_id();
  one->send(records.put(second, ns, 2, 1));
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "ops") == 2; }));
  EXPECT_EQ(other->call(records.put(other->new_id(), same, 3, 1)).header.status, Code::kBusy);
  EXPECT_EQ(other->call(Records::get(other->new_id(), same, 3, 1)).header.status, Code::kBusy);
  const auto foreign = enter(2);
  EXPECT_EQ(missing(*foreign, foreign->open(of("b")), 1, 1), 1U) << "other tenants have their own";
  one->call(wire::frame({.request_id = second}, wire::Cancel{}));
  EXPECT_EQ(missing(*other, same, 3, 1), 1U);
  one->peer().connection.reset();
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "ops") == 0; }));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(put(*other, same, 10).header.status, Code::kOk) << "slots come back";
}

// Records are of 16 KiB: a table page and three slabs.
TEST_F(NodeAuth, ATenantsBytesInThePoolAreBounded) {
  const std::string tokens = token_line(1, "a", "read,write") + token_line(2, "b", "read,write");
  start("tenant a pool=32KiB\n" + tokens);
  const auto a = enter(1), b = enter(2);
  const std::uint32_t of_a = a->open(of("a")), of_b = b->open(of("b"));
  for (std::size_t key = 1; key <= 4; ++key) {
    EXPECT_EQ(put(*b, of_b, key).header.status, Code::kOk);
    EXPECT_EQ(put(*a, of_a, key).header.status, Code::kOk);
  }
  EXPECT_EQ(missing(*a, of_a, 1, 4), 2U) << "the oldest two";
  EXPECT_EQ(missing(*b, of_b, 1, 4), 0U);
  const auto why = [](const Received& m) { return wire::decode<wire::PutReply>(m.header, m.meta)->why; };
  rig->node->set_authority(authority_of("tenant a pool=15KiB\n" + tokens));
  EXPECT_EQ(why(put(*a, of_a, 5)), Code::kBusy);
  EXPECT_EQ(missing(*a, of_a, 1, 5), 5U);
  EXPECT_EQ(missing(*b, of_b, 1, 4), 0U);
  EXPECT_NE(rig->node->stats_json().find(R"("pool_bytes":0,"pool_evictions":4,"pool_quota_bytes":15360,)"
                                         R"("pool_refused":1,)"),
            std::string::npos)
      << rig->node->stats_json();
  rig->node->set_authority(authority_of(tokens));
  for (std::size_t key = 1; key <= 4; ++key) EXPECT_EQ(put(*a, of_a, key).header.status, Code::kOk);
  EXPECT_EQ(missing(*a, of_a, 1, 4), 0U);
}

TEST_F(NodeAuth, ATenantsBytesOnFlashAreBounded) {
  const std::string tokens = token_line(1, "a", "read,write") + token_line(2, "b", "read,write");
  NodeOptions options = test_options();
  options.authority = authority_of("tenant a flash=32KiB\n" + tokens);
  rig = std::make_unique<Rig>(options, true);
  const auto a = enter(1), b = enter(2);
  const std::uint32_t of_a = a->open(of("a")), of_b = b->open(of("b"));
  const auto write = [this](RawClient& client, std::uint32_t ns, std::size_t key) {
    const std::uint64_t id = client.new_id();
    client.send(records.put(id, ns, key, 1, AckLevel::kWritten));
    client.send(records.put_head(id, key, 1, 0, records.layers()), records.put_body(key, 1, 0, records.layers()));
    const Received m = client.next();
    return wire::decode<wire::PutReply>(m.header, m.meta)->why;
  };
  for (std::size_t key = 1; key <= 4; ++key) {
    EXPECT_EQ(write(*b, of_b, key), Code::kOk);
    EXPECT_EQ(write(*a, of_a, key), Code::kOk);
  }
  const std::string figures = rig->node->stats_json();
  const auto of_tenant = [&](const char* name) { return nlohmann::json::parse(figures)["tenants"][name]; };
  EXPECT_EQ(of_tenant("b")["flash_bytes"], 65536);
  EXPECT_EQ(of_tenant("b")["flash_given_up_bytes"], 0);
  EXPECT_FALSE(of_tenant("b").contains("flash_quota_bytes"));
  EXPECT_EQ(missing(*a, of_a, 1, 4), 0U) << "the pool has them";
  rig->node->set_authority(authority_of("tenant a flash=1KiB\n" + tokens));
  EXPECT_EQ(write(*a, of_a, 5), Code::kBusy);
  EXPECT_EQ(missing(*a, of_a, 5, 1), 0U);
}

TEST_F(NodeAuth, NewCredentialsCountForThoseWhoAreIn) {
  start();
  const auto stays = enter(2);
  const auto goes = enter(1);
  const auto moves = enter(3);
  const std::uint32_t ns = stays->open(of("b"));
  rig->node->set_authority(authority_of(token_line(2, "b", "read") + token_line(3, "c", "read")));
  EXPECT_TRUE(goes->ended());
  EXPECT_TRUE(moves->ended()) << "of another tenant now";
  EXPECT_EQ(missing(*stays, ns, 1, 1), 1U);
  EXPECT_EQ(put(*stays, ns, 1).header.status, Code::kInvalid) << "has lost a right";
  const auto revoked = stranger();
  revoked->next();
  expect_refused(*revoked, show(*revoked, token_number(1)));
  enter(3);
}

TEST_F(NodeAuth, NobodyIsLentThePoolsMemory) {
  NodeOptions options = test_options();
  options.store.share_pool = true;
  options.listen = {"tcp://127.0.0.1:0"};
  start(everybody(), options);
  EXPECT_EQ(rig->node->store().shared_fd(), -1);
  const auto client = stranger(wire::kFeatureToken | wire::kFeatureSharedMemory);
  const Received m = client->next();
  EXPECT_EQ(wire::decode<wire::HelloReply>(m.header, m.meta)->features, wire::kFeatureToken);
}

TEST_F(NodeAuth, OtherMachinesMayComeWhereTheyNeedAToken) {
  NodeOptions options = test_options();
  options.listen = {"tcp://0.0.0.0:0"};
  start(everybody(), options);
  EXPECT_EQ(rig->node->addresses().size(), 1U);
  options.insecure = true;
  EXPECT_EQ(Rig(options).node->addresses().size(), 1U);
  options.insecure = false;
  const auto loop = *io::make_real_loop();
  std::string why;
  EXPECT_EQ(Node::start(*loop, rig->log, options, &why).error().code, Code::kInvalid);
  EXPECT_NE(why.find("--credentials"), std::string::npos) << why;
}

TEST_F(NodeAuth, ATenantsConnectionsAreBounded) {
  const std::string tokens = token_line(1, "a", "read,write") + token_line(2, "b", "read,write");
  start("tenant a connections=2\n" + tokens);
  auto one = enter(1);
  const auto two = enter(1);
  EXPECT_EQ(turned_away(1, Code::kBusy), "the tenant has as many connections as it may");
  enter(2);
  EXPECT_EQ(tenant("a")["connections"], 2);
  EXPECT_EQ(tenant("a")["connections_refused"], 1);
  EXPECT_EQ(rig->stat("node", "connections_refused"), 1U);
  one->vanish();
  ASSERT_TRUE(rig->until([&] { return tenant("a")["connections"] == 1; }));
  one = enter(1);
  rig->node->set_authority(authority_of("tenant a connections=1\n" + tokens));
  EXPECT_EQ(one->call(wire::frame({.request_id = one->new_id()}, wire::Ping{})).header.status, Code::kOk)
      << "who is in stays";
  two->vanish();
  ASSERT_TRUE(rig->until([&] { return tenant("a")["connections"] == 1; }));
  turned_away(1, Code::kBusy);
  rig->node->set_authority(authority_of(tokens));
  const auto three = enter(1), four = enter(1);
  EXPECT_EQ(tenant("a")["connections"], 3);
}

// Of 16 connections two are for strangers, and of the others half is shared out: three and three.
TEST_F(NodeAuth, ATenantThatTakesAllConnectionsLeavesOthersTheirs) {
  NodeOptions options = test_options();
  options.limits.connections_max = 16;
  const std::string tokens = token_line(1, "a", "read,write") + token_line(2, "b", "read,write");
  start(tokens, options);
  std::vector<std::unique_ptr<RawClient>> of_a, of_b;
  for (int i = 0; i < 11; ++i) of_a.push_back(enter(1));
  EXPECT_EQ(turned_away(1, Code::kBusy), "the connections that are left are kept for other tenants");
  for (int i = 0; i < 3; ++i) of_b.push_back(enter(2));
  turned_away(2, Code::kBusy);
  of_a.pop_back();
  ASSERT_TRUE(rig->until([&] { return tenant("a")["connections"] == 10; }));
  of_b.push_back(enter(2));
  rig->node->set_authority(authority_of(token_line(2, "b", "read,write")));
  for (const auto& client : of_a) EXPECT_TRUE(client->ended());
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "connections") == 4; }));
  for (int i = 0; i < 10; ++i) of_b.push_back(enter(2));
  EXPECT_FALSE(nlohmann::json::parse(rig->node->stats_json())["tenants"].contains("a")) << "nobody is of it";
}

TEST_F(NodeAuth, AListWithMoreTenantsLocksNobodyOutOfWhatIsFree) {
  NodeOptions options = test_options();
  options.limits.connections_max = 16;
  const std::string tokens = token_line(1, "a", "read,write") + token_line(2, "b", "read,write");
  start(tokens, options);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 11; ++i) clients.push_back(enter(1));
  const std::string more = token_line(3, "c", "read,write") + token_line(4, "d", "read,write");
  rig->node->set_authority(authority_of(tokens + more));
  clients.push_back(enter(2));
  clients.push_back(enter(3));
  EXPECT_EQ(turned_away(1, Code::kBusy), "the connections that are left are kept for other tenants");
  EXPECT_EQ(turned_away(2, Code::kBusy), "the connections that are left are kept for other tenants");
  clients.push_back(enter(4));
}

TEST_F(NodeAuth, ATenantsNamespacesAreBounded) {
  const std::string tokens = token_line(1, "a", "read,write") + token_line(2, "b", "read,write");
  start("tenant a namespaces=2\n" + tokens);
  const auto one = enter(1), other = enter(1), foreign = enter(2);
  const auto open = [this](RawClient& client, const char* name, int n) {
    Namespace ns = of(name);
    ns.fingerprint += std::to_string(n);
    return client.call(wire::frame({.request_id = client.new_id()}, wire::Open{ns}));
  };
  EXPECT_EQ(open(*one, "a", 1).header.status, Code::kOk);
  EXPECT_EQ(open(*other, "a", 2).header.status, Code::kOk);
  EXPECT_EQ(open(*other, "a", 1).header.status, Code::kOk) << "one that is open already";
  const Received third = open(*one, "a", 3);
  EXPECT_EQ(third.header.status, Code::kNoSpace);
  EXPECT_EQ(wire::error_text(third.meta), "the tenant has as many namespaces open as it may: close some");
  EXPECT_EQ(tenant("a")["namespaces"], 2);
  EXPECT_EQ(tenant("a")["namespaces_refused"], 1);
  for (int n = 1; n <= 3; ++n) EXPECT_EQ(open(*foreign, "b", n).header.status, Code::kOk);
  other->vanish();
  ASSERT_TRUE(rig->until([&] { return tenant("a")["namespaces"] == 1; }));
  EXPECT_EQ(open(*one, "a", 3).header.status, Code::kOk);
  rig->node->set_authority(authority_of("tenant a namespaces=3\n" + tokens));
  EXPECT_EQ(open(*one, "a", 4).header.status, Code::kOk);
  EXPECT_EQ(open(*one, "a", 5).header.status, Code::kNoSpace);
}

TEST_F(NodeAuth, TenantsHaveFigures) {
  start();
  const auto client = enter(1);
  missing(*client, client->open(of("a")), 1, 1);
  const auto figures = tenant("a");
  EXPECT_EQ(figures["requests"], 1);
  EXPECT_EQ(figures["refused"], 0);
  EXPECT_EQ(figures["requests_in_flight"], 0);
  EXPECT_EQ(figures["connections"], 1);
  EXPECT_EQ(figures["records_missed"], 1);
  EXPECT_EQ(figures["records_got"], 0);
  const std::uint32_t ns = client->open(of("a"));
  put(*client, ns, 1);
  EXPECT_EQ(missing(*client, ns, 1, 2), 1U);
  EXPECT_EQ(tenant("a")["records_got"], 1);
  EXPECT_EQ(tenant("a")["records_missed"], 2);
  EXPECT_EQ(tenant("a")["bytes_sent"], records.layers() * records.slab_bytes());
  EXPECT_EQ(tenant("a")["bytes_received"], records.layers() * records.slab_bytes());
  EXPECT_EQ(tenant("a")["namespaces"], 1);
  EXPECT_EQ(tenant("a")["namespaces_quota"], 1024) << "where nothing is said";
  EXPECT_EQ(tenant("b")["connections"], 0) << "a tenant of the file that never came";
}

TEST(Tenants, FiguresOfManyAreSummed) {
  Tenants tenants;
  for (std::size_t i = 0; i < Tenants::kShownMax + 3; ++i) {
    tenants.get("t" + std::to_string(1000 + i), {})->accepted.add(i);
  }
  const auto figures = tenants.figures();
  ASSERT_EQ(figures.size(), Tenants::kShownMax + 1);
  EXPECT_EQ(figures[1].accepted, 1U);
  EXPECT_EQ(figures.back().name, "(others)");
  EXPECT_EQ(figures.back().accepted, 64U + 65 + 66);
}

// Redis clients are let in by the same credentials.
class RespByCredential : public NodeAuth {
 protected:
  static std::string said(RespClient& client, const std::vector<std::string>& words) {
    client.send(resp_command(words));
    return client.line();
  }
};

TEST_F(RespByCredential, ATokenIsATenantWithItsRights) {
  start();
  wall = 946684800;  // 2000-01-01
  RespClient a(*rig), b(*rig), reader(*rig), expired(*rig), stranger(*rig);
  EXPECT_EQ(said(a, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(b, {"AUTH", "b", token_number(2)}), "+OK\r\n");
  EXPECT_EQ(said(reader, {"AUTH", token_number(3)}), "+OK\r\n");
  EXPECT_TRUE(said(expired, {"AUTH", token_number(5)}).starts_with("-WRONGPASS"));
  EXPECT_TRUE(said(stranger, {"GET", "k"}).starts_with("-NOAUTH"));
  EXPECT_EQ(said(a, {"SET", "k", "of a"}), "+OK\r\n");
  EXPECT_EQ(said(b, {"EXISTS", "k"}), ":0\r\n");
  EXPECT_EQ(said(reader, {"EXISTS", "k"}), ":1\r\n");
  EXPECT_TRUE(said(reader, {"SET", "k", "x"}).starts_with("-NOPERM"));
}

TEST_F(RespByCredential, TheLogTellsFromWhereAWrongTokenCame) {
  start();
  for (int i = 0; i < 2; ++i) {
    RespClient guesses(*rig);
    EXPECT_TRUE(said(guesses, {"AUTH", token_number(9)}).starts_with("-WRONGPASS"));
  }
  EXPECT_EQ(rig->log.count("refused this host: unknown or revoked token"), 1U) << "one line a period and peer";
  EXPECT_EQ(rig->stat("node", "unauthorized"), 2U);
}

// Of all clients of the tenant: one holds a SET open, the others' commands count with it.
TEST_F(RespByCredential, ATenantsRequestsInFlightAreBounded) {
  start("tenant a requests=1\n" + token_line(1, "a", "read,write") + token_line(2, "b", "read,write"));
  RespClient holds(*rig), other(*rig), b(*rig);
  EXPECT_EQ(said(holds, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(other, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(b, {"AUTH", token_number(2)}), "+OK\r\n");
  const std::string set = resp_command({"SET", "k", resp_text(100'000, 1)});
  holds.send(std::string_view(set).substr(0, set.size() - 1));
  EXPECT_TRUE(rig->until([&] { return rig->stat("store", "unfinished_puts") > 0; }));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"EXISTS", "k"}, {"GET", "k"}, {"SET", "l", "v"}, {"DEL", "k"}})
    EXPECT_EQ(said(other, words), "-BUSY the tenant has as many requests in flight as it may\r\n") << words[0];
  EXPECT_EQ(said(other, {"PING"}), "+PONG\r\n");
  EXPECT_EQ(said(b, {"EXISTS", "k"}), ":0\r\n");
  holds.send("\n");
  EXPECT_EQ(holds.line(), "+OK\r\n");
  EXPECT_EQ(said(other, {"EXISTS", "k"}), ":1\r\n");
  EXPECT_EQ(said(other, {"DEL", "k"}), ":1\r\n");
  EXPECT_EQ(said(other, {"SET", "l", "v"}), "+OK\r\n");
  EXPECT_EQ(tenant("a")["refused"], 4);
  EXPECT_EQ(tenant("a")["requests"], 4);
  EXPECT_EQ(tenant("a")["records_got"], 1) << "EXISTS";
  EXPECT_EQ(tenant("a")["bytes_received"], 100'001);
}

TEST_F(RespByCredential, ATenantsConnectionsAreBounded) {
  start("tenant a connections=1\n" + token_line(1, "a", "read,write") + token_line(2, "b", "read,write"));
  RespClient in(*rig), out(*rig), b(*rig), again(*rig);
  EXPECT_EQ(said(in, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(in, {"AUTH", token_number(1)}), "+OK\r\n") << "it has its place";
  EXPECT_EQ(said(out, {"AUTH", token_number(1)}),
            "-ERR max number of clients reached: the tenant has as many connections as it may\r\n");
  EXPECT_TRUE(out.ended());
  EXPECT_EQ(said(b, {"AUTH", token_number(2)}), "+OK\r\n");
  EXPECT_EQ(said(in, {"AUTH", token_number(2)}), "+OK\r\n") << "another tenant from now on";
  EXPECT_EQ(said(again, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(tenant("a")["connections"], 1);
  EXPECT_EQ(tenant("b")["connections"], 2);
}

// Their values take five.
TEST_F(RespByCredential, ATenantsNamespacesAreBounded) {
  start("tenant a namespaces=4\n" + token_line(1, "a", "read,write"));
  RespClient client(*rig);
  EXPECT_EQ(said(client, {"AUTH", token_number(1)}),
            "-ERR the tenant has as many namespaces open as it may: close some\r\n");
  EXPECT_TRUE(client.ended());
  rig->node->set_authority(authority_of("tenant a namespaces=5\n" + token_line(1, "a", "read,write")));
  RespClient again(*rig);
  EXPECT_EQ(said(again, {"AUTH", token_number(1)}), "+OK\r\n");
}

TEST_F(RespByCredential, ATenantsQuotaOfThePoolBoundsItsValues) {
  start("tenant a pool=64KiB\n" + token_line(1, "a", "read,write") + token_line(2, "b", "read,write"));
  RespClient a(*rig), b(*rig);
  EXPECT_EQ(said(a, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(b, {"AUTH", token_number(2)}), "+OK\r\n");
  EXPECT_TRUE(said(a, {"SET", "k", resp_text(200'000, 1)}).starts_with("-OOM"));
  EXPECT_EQ(said(b, {"SET", "k", resp_text(200'000, 1)}), "+OK\r\n");
  EXPECT_EQ(said(a, {"SET", "k", "small"}), "+OK\r\n");
  EXPECT_EQ(said(a, {"EXISTS", "k"}), ":1\r\n");
}

TEST_F(RespByCredential, AValueBeyondTheQuotaOfFlashIsRefusedForThat) {
  const std::string token = token_line(1, "a", "read,write");
  NodeOptions options = test_options();
  options.authority = authority_of("tenant a flash=64KiB\n" + token);
  options.resp_ack = AckLevel::kWritten;
  rig = std::make_unique<Rig>(options, true);
  constexpr const char* kTooLarge = "-ERR the value is larger than the tenant's quota of flash\r\n";
  RespClient a(*rig);
  EXPECT_EQ(said(a, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(a, {"SET", "k", resp_text(200'000, 1)}), kTooLarge);
  EXPECT_EQ(said(a, {"SET", "k", resp_text(20'000, 1)}), "+OK\r\n");
  rig->node->set_authority(authority_of("tenant a flash=1KiB\n" + token));
  RespClient again(*rig);
  EXPECT_EQ(said(again, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(again, {"SET", "k", "v"}), kTooLarge);
  again.send("SET k v\r\n");
  EXPECT_EQ(again.line(), kTooLarge);
}

TEST_F(RespByCredential, OfAStrangerLittleIsKept) {
  start();
  RespClient client(*rig);
  EXPECT_EQ(said(client, {"AUTH", std::string(1025, 'x')}), "-ERR too long\r\n");
  EXPECT_EQ(said(client, {"HELLO", "3", "SETNAME", "a", "SETNAME", "b", "SETNAME", "c", "d"}), "-ERR too long\r\n");
  EXPECT_EQ(said(client, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(client, {"GET", std::string(1025, 'x')}), "$-1\r\n");
}

TEST_F(RespByCredential, WhoHasShownAWrongTokenKeepsItsPlaceUntilItIsAnswered) {
  NodeOptions options = test_options();
  options.limits.strangers_max = 1;
  options.limits.stranger_grace = Duration::zero();
  start(everybody(), options, Millis(300));
  RespClient guesses(*rig);
  guesses.send(resp_command({"AUTH", token_number(9)}));
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "unauthorized") == 1; }));
  auto [near, far] = net::make_socket_pair();
  EXPECT_EQ(rig->node->adopt_resp(net::make_socket_stream(std::move(far))).error().code, Code::kBusy);
  EXPECT_TRUE(guesses.line().starts_with("-WRONGPASS"));
  EXPECT_TRUE(guesses.ended());
}

TEST_F(RespByCredential, FiguresOfAllTenantsAreForAdministrators) {
  start(token_line(1, "a", "read,write") + token_line(2, "a", "admin"));
  RespClient client(*rig), admin(*rig);
  EXPECT_EQ(said(client, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(admin, {"AUTH", token_number(2)}), "+OK\r\n");
  const auto info = [](RespClient& who) { return who.read(std::stoul(said(who, {"INFO"}).substr(1)) + 2); };
  EXPECT_EQ(info(client).find("used_memory"), std::string::npos);
  EXPECT_NE(info(admin).find("used_memory"), std::string::npos);
  EXPECT_TRUE(said(admin, {"GET", "k"}).starts_with("-NOPERM"));
  EXPECT_EQ(rig->stat("node", "forbidden"), 1U);
}

TEST_F(RespByCredential, OtherCredentialsEndItsConnections) {
  start();
  RespClient a(*rig);
  EXPECT_EQ(said(a, {"AUTH", token_number(1)}), "+OK\r\n");
  rig->node->set_authority(authority_of(token_line(2, "b", "read,write")));
  EXPECT_TRUE(a.ended());
  RespClient again(*rig);
  EXPECT_TRUE(said(again, {"AUTH", token_number(1)}).starts_with("-WRONGPASS"));
}

// The keyspace stays until then, though nobody uses it.
TEST_F(RespByCredential, TheOldPartsOfAValueGoAlsoWhereItsClientDoesBeforeTheNewOneIsWritten) {
  io::SimDisks disks(1);
  NodeOptions options = test_options();
  options.authority = authority_of(token_line(1, "a", "read,write"));
  options.resp_ack = AckLevel::kWritten;
  options.disks = &disks;
  Rig depot(options, true);
  RespClient client(depot);
  EXPECT_EQ(said(client, {"AUTH", token_number(1)}), "+OK\r\n");
  ASSERT_EQ(said(client, {"SET", "k", resp_text(9'000, 1)}), "+OK\r\n");
  ASSERT_EQ(depot.stat("store", "flash_records"), 2U) << "its head and a part";
  io::SimDrive& drive = disks.drive(depot.options.store.dir + "/flash.kvd");
  drive.hold_back(0, drive.size(), std::chrono::seconds(1));
  client.send(resp_command({"SET", "k", "small"}));
  ASSERT_TRUE(depot.until([&] { return depot.stat("store", "dirty_records") == 1; }));
  depot.node->set_authority(authority_of(token_line(2, "b", "read,write")));
  EXPECT_TRUE(depot.until([&] { return depot.stat("node", "resp_connections") == 0; }));
  EXPECT_EQ(depot.stat("store", "dirty_records"), 1U) << "not written yet";
  EXPECT_TRUE(depot.until([&] { return depot.stat("store", "dirty_records") == 0; }));
  EXPECT_TRUE(depot.until([&] { return depot.stat("store", "flash_records") == 1; }));
}

TEST_F(RespByCredential, ATokenThatExpiresIsGoodNoMore) {
  start(token_line(1, "a", "read,write", "2000-01-02"));
  RespClient a(*rig);
  EXPECT_EQ(said(a, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(a, {"EXISTS", "k"}), ":0\r\n");
  wall = auth::kNoExpiry - 1;
  EXPECT_TRUE(said(a, {"EXISTS", "k"}).starts_with("-NOAUTH"));
  EXPECT_TRUE(a.ended());
}

}  // namespace
}  // namespace kvd::node
