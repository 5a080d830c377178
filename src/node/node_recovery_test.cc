// A node whose store still reads what flash holds: who may come, what is answered, and what is put off.
#include <cstdint>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "http/testing/ask.h"
#include "io/sim/sim_disk.h"
#include "io/sim/sim_loop.h"
#include "node/node.h"
#include "node/testing/resp_client.h"
#include "node/testing/rig.h"
#include "store/flash_health.h"
#include "store/format.h"
#include "store/testing/store_kit.h"

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

TEST_F(NodeRecoveryTest, ANamespaceThatWasNotReadYetIsOpenedLater) {
  const auto client = rig_.connect_tcp();
  const Received refused = client->call(wire::frame({.request_id = client->new_id()}, wire::Open{records_.ns()}));
  EXPECT_EQ(refused.header.status, Code::kUnavailable);
  EXPECT_NE(wire::error_text(refused.meta).find("the depot is recovering"), std::string::npos);
  EXPECT_EQ(rig_.stat("store", "recovering"), 1U);
  EXPECT_NE(rig_.node->stats_json().find("\"ready\":false"), std::string::npos);

  std::string why;
  ASSERT_TRUE(rig_.node->recover(&why)) << why;
  EXPECT_EQ(rig_.stat("store", "recovering"), 0U);
  EXPECT_EQ(rig_.stat("store", "recovery_percent"), 100U);
  EXPECT_NE(rig_.node->stats_json().find("\"ready\":true"), std::string::npos);
  const std::uint32_t ns = client->open(records_.ns());
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

// Whose end of recovery nobody's connection has to pay for.
TEST_F(NodeRecoveryTest, WhoWouldOpenANamespaceOtherwiseThanItIsStoredIsToldAtTheEnd) {
  Namespace other = records_.ns();
  other.groups[0].layers += 1;
  const auto early = rig_.connect();
  const auto ask = [&] { return early->call(wire::frame({.request_id = early->new_id()}, wire::Open{other})); };
  EXPECT_EQ(ask().header.status, Code::kUnavailable);
  ASSERT_TRUE(rig_.node->recover());
  EXPECT_EQ(ask().header.status, Code::kInvalid);
  EXPECT_EQ(prefix(*early, early->open(records_.ns())), 3U);
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

// A client that asks one thing after the other while its node recovers: OPEN until it is answered, a lookup of the
// record that was written last, a removal of it, and a put.
class EarlyClient {
 public:
  EarlyClient(Rig& rig, const Records& records)
      : rig_(rig), records_(records), client_(rig.connect()), timer_(*rig.loop, [this] { look(); }) {
    before_ = client_->peer().received.size();
    timer_.arm(rig.loop->now());
  }
  std::uint32_t prefix = 0;  // of the lookup
  Code removal = Code::kOk;
  Code put = Code::kOk;
  bool early = false;  // all was answered before the end

 private:
  void look() {
    timer_.arm_in(Millis(1));
    if (client_->peer().received.size() < before_ + asked_) return;
    if (asked_ > 0) take(client_->peer().received.back());
    ask();
  }
  void take(const Received& reply) {
    if (step_ == 0 && reply.header.status == Code::kUnavailable) return;  // once more
    if (step_ == 0) ns_ = wire::decode<wire::OpenReply>(reply.header, reply.meta)->ns;
    if (step_ == 1) prefix = wire::decode<wire::MatchReply>(reply.header, reply.meta)->prefix_blocks;
    if (step_ == 2) removal = reply.header.status;
    if (step_ == 3) {
      put = wire::decode<wire::PutReply>(reply.header, reply.meta)->why;
      early = rig_.node->store().recovering();
      timer_.disarm();
    }
    ++step_;
  }
  void ask() {
    const wire::Header header{.request_id = client_->new_id()};
    const auto keys = Records::keys(1, 1);
    const wire::Match match{.ns = ns_, .blocks = 1, .shards = {0}, .groups = {0}, .keys = {keys, 16, true}};
    const wire::Remove remove{.ns = ns_, .shards = {0}, .groups = {0}, .keys = {keys, 16, true}};
    if (step_ > 3) return;
    ++asked_;
    switch (step_) {
      case 0: return client_->send(wire::frame(header, wire::Open{records_.ns()}));
      case 1: return client_->send(wire::frame(header, match));
      case 2: return client_->send(wire::frame(header, remove));
      default: return client_->send(records_.put(header.request_id, ns_, 5, 1));
    }
  }

  Rig& rig_;
  const Records& records_;
  std::unique_ptr<RawClient> client_;
  io::Timer timer_;
  std::size_t before_ = 0, asked_ = 0;
  int step_ = 0;
  std::uint32_t ns_ = 0;
};

TEST(NodeRecovery, TheNewestIsFoundBeforeTheEndAndWhatChangesIsPutOff) {
  constexpr std::uint64_t kSegmentBytes = std::uint64_t{16} << 20;
  io::SimDisks disks(1);
  NodeOptions options = test_options();
  options.disks = &disks;
  Rig rig(options, true);
  const Records records(small_namespace());
  ASSERT_TRUE(rig.put_all(records, 0, 1, AckLevel::kWritten));
  rig.restart();  // it goes on in another segment
  ASSERT_TRUE(rig.put_all(records, 1, 1, AckLevel::kWritten));
  rig.options.serve_recovering = true;
  rig.restart();
  // The end of the older one's segment, whichever that is.
  io::SimDrive& drive = disks.drive(rig.options.store.dir + "/flash.kvd");
  const std::vector<std::byte> slab = records.slab(0, 0);
  std::vector<std::byte> start(slab.size());
  std::uint64_t segment = store::kHeadBytes;
  const auto holds_it = [&] {
    for (std::uint64_t at = segment; at < segment + (kSegmentBytes >> 4); at += kPageBytes) {
      drive.peek(at, start);
      if (start == slab) return true;
    }
    return false;
  };
  while (!holds_it()) {
    segment += kSegmentBytes;
    ASSERT_LT(segment, drive.size());
  }
  drive.hold_back(segment + kSegmentBytes - kPageBytes, kPageBytes, std::chrono::seconds(1));
  EarlyClient client(rig, records);
  ASSERT_TRUE(rig.node->recover());
  EXPECT_TRUE(client.early);
  EXPECT_EQ(client.prefix, 1U);
  EXPECT_EQ(client.removal, Code::kBusy);
  EXPECT_EQ(client.put, Code::kBusy);
  EXPECT_TRUE(rig.put_all(records, 5, 1));
}

TEST(NodeRecovery, WithADriveThatHangsItIsReadyOnceFlashIsOff) {
  const store::TempDir folder;
  io::SimClock clock;
  io::SimLoop loop(clock);
  io::SimDisks disks(1);
  RecordingLog log;
  NodeOptions options = test_options();
  options.store.dir = folder.path() + "/store";
  options.store.flash_bytes = std::uint64_t{128} << 20;
  options.store.segment_bytes = std::uint64_t{16} << 20;
  options.disks = &disks;
  options.http = "127.0.0.1:0";
  ASSERT_TRUE(Node::start(loop, log, options).has_value());
  options.serve_recovering = true;
  const auto node = *Node::start(loop, log, options);
  io::SimDrive& drive = disks.drive(options.store.dir + "/flash.kvd");
  drive.hold_back(0, drive.size(), std::chrono::seconds(30));
  const auto ready = [&] { return node->stats_json().find("\"ready\":true") != std::string::npos; };
  const auto health = [&] { return http::ask(node->http_address(), "GET /healthz HTTP/1.0\r\n\r\n"); };
  bool looked = false;
  io::Timer before(loop, [&] {
    EXPECT_FALSE(ready());
    EXPECT_TRUE(health().starts_with("HTTP/1.1 503 "));
  });
  io::Timer off(loop, [&] {
    looked = true;
    EXPECT_TRUE(ready());
    const std::string said = health();
    EXPECT_TRUE(said.starts_with("HTTP/1.1 200 ")) << said;
    EXPECT_TRUE(said.ends_with("ready from memory alone, recovery stands at 0 %\n")) << said;
    drive.hold_back(0, drive.size(), Duration::zero());
  });
  before.arm_in(store::FlashHealth::kStallMax / 2);
  off.arm_in(store::FlashHealth::kStallMax + std::chrono::seconds(1));
  ASSERT_TRUE(node->recover());
  EXPECT_TRUE(looked);
  EXPECT_TRUE(health().ends_with("\r\n\r\nready\n"));
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
