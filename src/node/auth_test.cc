// A node with credentials: who gets in, as which tenant, and what it may do.
#include <gtest/gtest.h>

#include "node/tenants.h"
#include "node/testing/auth_fixture.h"

namespace kvd::node {
namespace {

using net::Received;

using auth::token_number;

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
  rig->node->set_authority(auth::shared_authority("tenant a pool=15KiB\n" + tokens));
  EXPECT_EQ(why(put(*a, of_a, 5)), Code::kBusy);
  EXPECT_EQ(missing(*a, of_a, 1, 5), 5U);
  EXPECT_EQ(missing(*b, of_b, 1, 4), 0U);
  EXPECT_NE(rig->node->stats_json().find(R"("pool_bytes":0,"pool_evictions":4,"pool_quota_bytes":15360,)"
                                         R"("pool_refused":1,)"),
            std::string::npos)
      << rig->node->stats_json();
  rig->node->set_authority(auth::shared_authority(tokens));
  for (std::size_t key = 1; key <= 4; ++key) EXPECT_EQ(put(*a, of_a, key).header.status, Code::kOk);
  EXPECT_EQ(missing(*a, of_a, 1, 4), 0U);
}

TEST_F(NodeAuth, ATenantsBytesOnFlashAreBounded) {
  const std::string tokens = token_line(1, "a", "read,write") + token_line(2, "b", "read,write");
  NodeOptions options = test_options();
  options.authority = auth::shared_authority("tenant a flash=32KiB\n" + tokens);
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
  rig->node->set_authority(auth::shared_authority("tenant a flash=1KiB\n" + tokens));
  EXPECT_EQ(write(*a, of_a, 5), Code::kBusy);
  EXPECT_EQ(missing(*a, of_a, 5, 1), 0U);
}

TEST_F(NodeAuth, NewCredentialsCountForThoseWhoAreIn) {
  start();
  const auto stays = enter(2);
  const auto goes = enter(1);
  const auto moves = enter(3);
  const std::uint32_t ns = stays->open(of("b"));
  rig->node->set_authority(auth::shared_authority(token_line(2, "b", "read") + token_line(3, "c", "read")));
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
  rig->node->set_authority(auth::shared_authority("tenant a connections=1\n" + tokens));
  EXPECT_EQ(one->call(wire::frame({.request_id = one->new_id()}, wire::Ping{})).header.status, Code::kOk)
      << "who is in stays";
  two->vanish();
  ASSERT_TRUE(rig->until([&] { return tenant("a")["connections"] == 1; }));
  turned_away(1, Code::kBusy);
  rig->node->set_authority(auth::shared_authority(tokens));
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
  rig->node->set_authority(auth::shared_authority(token_line(2, "b", "read,write")));
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
  rig->node->set_authority(auth::shared_authority(tokens + more));
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
  rig->node->set_authority(auth::shared_authority("tenant a namespaces=3\n" + tokens));
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

}  // namespace
}  // namespace kvd::node
