// A node whose store still reads what flash holds: who may come, what is answered, and what is put off.
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "node/node.h"
#include "node/testing/resp_client.h"
#include "node/testing/rig.h"

namespace kvd::node {
namespace {

using net::Received;

// Three records are on flash; the node was started anew and has not read them yet.
class NodeRecoveryTest : public ::testing::Test {
 protected:
  static NodeOptions options() {
    NodeOptions options = test_options();
    options.listen = {"tcp://127.0.0.1:0"};
    options.http = "127.0.0.1:0";
    return options;
  }
  void SetUp() override {
    ASSERT_TRUE(rig_.put_all(records_, 0, 3, AckLevel::kWritten));
    rig_.options.serve_recovering = true;
    rig_.restart();
    ASSERT_TRUE(rig_.node->store().recovering());
  }
  std::uint32_t prefix(RawClient& client, std::uint32_t ns) {
    const auto keys = Records::keys(0, 3);
    const wire::Match request{.ns = ns, .blocks = 3, .shards = {0}, .groups = {0}, .keys = {keys, 16, true}};
    const Received reply = client.call(wire::frame({.request_id = client.new_id()}, request));
    const auto decoded = wire::decode<wire::MatchReply>(reply.header, reply.meta);
    EXPECT_TRUE(decoded.has_value());
    return decoded ? decoded->prefix_blocks : 0;
  }
  Received remove(RawClient& client, std::uint32_t ns) {
    const auto keys = Records::keys(1, 1);
    return client.call(wire::frame({.request_id = client.new_id()},
                                   wire::Remove{.ns = ns, .shards = {0}, .groups = {0}, .keys = {keys, 16, true}}));
  }

  Records records_{small_namespace()};
  Rig rig_{options(), true};
};

TEST_F(NodeRecoveryTest, ClientsComeAndMissAndWhatChangesIsPutOff) {
  const auto client = rig_.connect_tcp();
  const std::uint32_t ns = client->open(records_.ns());
  EXPECT_EQ(rig_.stat("store", "recovering"), 1U);
  EXPECT_NE(rig_.node->stats_json().find("\"ready\":false"), std::string::npos);
  EXPECT_EQ(prefix(*client, ns), 0U);
  EXPECT_EQ(remove(*client, ns).header.status, Code::kBusy);
  const Received put = client->call(records_.put(client->new_id(), ns, 5, 2));
  const auto refused = wire::decode<wire::PutReply>(put.header, put.meta);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(wire::count_bits(refused->failed), 2U);

  std::string why;
  ASSERT_TRUE(rig_.node->recover(&why)) << why;
  EXPECT_EQ(rig_.stat("store", "recovering"), 0U);
  EXPECT_EQ(rig_.stat("store", "recovery_percent"), 100U);
  EXPECT_NE(rig_.node->stats_json().find("\"ready\":true"), std::string::npos);
  EXPECT_EQ(prefix(*client, ns), 3U);
  EXPECT_EQ(remove(*client, ns).header.status, Code::kOk);
  EXPECT_EQ(prefix(*client, ns), 1U);
  EXPECT_TRUE(rig_.put_all(records_, 5, 2));
}

TEST_F(NodeRecoveryTest, RedisClientsAreToldThatItIsLoading) {
  RespClient client(rig_);
  const std::string loading = "-LOADING the depot is recovering: nothing is changed yet\r\n";
  EXPECT_EQ(client.call({"SET", "a", "b"}, loading), loading);
  EXPECT_EQ(client.call({"DEL", "a"}, loading), loading);
  EXPECT_EQ(client.call({"GET", "a"}, "$-1\r\n"), "$-1\r\n");
  ASSERT_TRUE(rig_.node->recover());
  EXPECT_EQ(client.call({"SET", "a", "b"}, "+OK\r\n"), "+OK\r\n");
  EXPECT_EQ(client.call({"DEL", "a"}, ":1\r\n"), ":1\r\n");
}

TEST_F(NodeRecoveryTest, WhoOpenedANamespaceOtherwiseThanItIsStoredIsToldWhenHeComesBack) {
  Namespace other = records_.ns();
  other.groups[0].layers += 1;
  const auto early = rig_.connect();
  early->open(other);
  ASSERT_TRUE(rig_.node->recover());
  EXPECT_TRUE(early->ended());
  const auto again = rig_.connect();
  const Received reply = again->call(wire::frame({.request_id = 1}, wire::Open{other}));
  EXPECT_EQ(reply.header.status, Code::kInvalid);
  EXPECT_EQ(prefix(*again, again->open(records_.ns())), 3U);
}

TEST_F(NodeRecoveryTest, ADrainBeforeTheEndLeavesEverythingForTheNextStart) {
  bool drained = false;
  rig_.node->drain(std::chrono::seconds(1), [&] { drained = true; });
  EXPECT_TRUE(rig_.until([&] { return drained; }));
  EXPECT_TRUE(rig_.node->recover()) << "it has ended early";
  EXPECT_TRUE(rig_.node->store().recovering());
  rig_.restart();
  ASSERT_TRUE(rig_.node->recover());
  const auto client = rig_.connect();
  EXPECT_EQ(prefix(*client, client->open(records_.ns())), 3U);
}

TEST(NodeRecovery, AStoreInMemoryHasNothingToRead) {
  NodeOptions options = test_options();
  options.serve_recovering = true;
  Rig rig(options);
  EXPECT_FALSE(rig.node->store().recovering());
  EXPECT_TRUE(rig.put_all(Records(small_namespace()), 0, 3));
  EXPECT_TRUE(rig.node->recover());
}

}  // namespace
}  // namespace kvd::node
