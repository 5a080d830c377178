// A node whose bodies are sent by threads beside its loop (net/movers.h), on real sockets.
#include <algorithm>

#include <gtest/gtest.h>

#include "node/testing/rig.h"

namespace kvd::node {
namespace {

constexpr std::uint16_t kCoreLayers = 8;
constexpr std::uint32_t kCoreSlab = 256 << 10;

NodeOptions with_cores(std::uint32_t cores) {
  NodeOptions options = test_options();
  options.listen = {"tcp://127.0.0.1:0"};
  options.cores = cores;
  return options;
}

class CoresTest : public testing::Test {
 protected:
  void start(std::uint32_t cores) {
    rig_.emplace(with_cores(cores));
    ASSERT_TRUE(rig_->put_all(records_, 0, 4));
  }
  struct Puller {
    std::unique_ptr<RawClient> client;
    std::uint32_t ns = 0;
  };
  Puller puller() {
    Puller puller{.client = rig_->connect_tcp()};
    puller.ns = puller.client->open(records_.ns());
    puller.client->peer().received.clear();
    return puller;
  }
  [[nodiscard]] static std::size_t ended(const Puller& puller) {
    return static_cast<std::size_t>(std::ranges::count_if(puller.client->peer().received, [](const net::Received& m) {
      return (m.header.flags & wire::kFlagLast) != 0;
    }));
  }
  void expect_right(const Puller& puller, std::size_t first, std::size_t count) {
    for (const net::Received& message : puller.client->peer().received) {
      ASSERT_EQ(message.header.status, Code::kOk);
      const auto layer = message.header.layer_first;
      EXPECT_TRUE(message.payload ==
                  records_.put_body(first, count, layer, std::uint32_t{layer} + message.header.layer_count));
    }
  }

  const Records records_{small_namespace(kCoreLayers, kCoreSlab)};
  std::optional<Rig> rig_;
};

TEST_F(CoresTest, RecordsOfManyClientsComeWholeThroughTheThreads) {
  start(3);
  std::vector<Puller> pullers;
  for (int i = 0; i < 4; ++i) pullers.push_back(puller());
  constexpr std::size_t kGets = 4;
  for (std::size_t i = 0; i < kGets; ++i)
    for (const Puller& p : pullers) p.client->send(Records::get(p.client->new_id(), p.ns, 1, 2));
  ASSERT_TRUE(
      rig_->until([&] { return std::ranges::all_of(pullers, [](const Puller& p) { return ended(p) == kGets; }); }));
  for (const Puller& p : pullers) expect_right(p, 1, 2);
  EXPECT_GT(rig_->stat("net", "moves"), 0U);
  EXPECT_GT(rig_->stat("net", "moved_bytes"), std::uint64_t{kCoreSlab});
  EXPECT_TRUE(rig_->until([&] { return rig_->stat("node", "pinned_bytes") == 0; }));
  EXPECT_EQ(rig_->stat("node", "ops"), 0U);
}

TEST_F(CoresTest, OneCoreIsTheLoopsOwn) {
  start(1);
  const Puller p = puller();
  p.client->send(Records::get(p.client->new_id(), p.ns, 0, 4));
  ASSERT_TRUE(rig_->until([&] { return ended(p) == 1; }));
  expect_right(p, 0, 4);
  EXPECT_EQ(rig_->stat("net", "moves"), 0U);
}

TEST_F(CoresTest, ClientsThatGoWithinAGetLeaveNothingBehind) {
  start(2);
  for (int round = 0; round < 20; ++round) {
    std::vector<Puller> pullers;
    for (int i = 0; i < 3; ++i) pullers.push_back(puller());
    for (const Puller& p : pullers) p.client->send(Records::get(p.client->new_id(), p.ns, 0, 4));
    const std::uint64_t moves = rig_->stat("net", "moves");
    ASSERT_TRUE(rig_->until([&] { return rig_->stat("net", "moves") > moves; }));
    for (const Puller& p : pullers) p.client->vanish();
    ASSERT_TRUE(rig_->until([&] { return rig_->stat("node", "connections") == 0; }));
    EXPECT_EQ(rig_->stat("node", "pinned_bytes"), 0U);
    EXPECT_EQ(rig_->stat("node", "ops"), 0U);
  }
}

TEST_F(CoresTest, TheNodeMayEndWithinAGet) {
  for (int round = 0; round < 5; ++round) {
    start(2);
    const Puller a = puller(), b = puller();
    for (const Puller* p : {&a, &b}) p->client->send(Records::get(p->client->new_id(), p->ns, 0, 4));
    ASSERT_TRUE(rig_->until([&] { return rig_->stat("net", "moves") > 0; }));
    rig_->node.reset();
    rig_->loop->run_once(Duration::zero());
  }
}

}  // namespace
}  // namespace kvd::node
