// Views that clients keep, seen by a client that speaks raw protocol: they end when they are given back or when the
// keeper is closed, and not before.
#include <unistd.h>

#include <gtest/gtest.h>

#include "node/testing/rig.h"

namespace kvd::node {
namespace {

using net::Received;

constexpr std::uint64_t kMemoryAndKeeper = wire::kFeatureSharedMemory | wire::kFeatureKeep;

class SessionKeepTest : public testing::Test {
 protected:
  void start(NodeOptions options = test_options()) {
    options.store.share_pool = true;
    client.reset();
    rig = std::make_unique<Rig>(std::move(options));
    connect();
  }
  void connect() {
    client = rig->connect(true, kMemoryAndKeeper);
    ASSERT_EQ(client->features(), kMemoryAndKeeper);
    EXPECT_EQ(client->next().header.opcode, wire::Opcode::kMemory);
    EXPECT_TRUE(client->peer().take_descriptor().ok());
    EXPECT_EQ(client->next().header.opcode, wire::Opcode::kKeeper);
    keeper = client->peer().take_descriptor();
    ASSERT_TRUE(keeper.ok());
    ns = client->open(records.ns());
  }
  static wire::Buffer get(std::uint64_t id, std::uint32_t handle, std::size_t first, std::size_t count,
                          std::uint32_t deadline_ms = 0) {
    const auto keys = Records::keys(first, count);
    return wire::frame({.request_id = id, .items = static_cast<std::uint32_t>(count), .deadline_ms = deadline_ms},
                       wire::Get{.ns = handle, .keep = true, .keys = {keys, sizeof(Key), true}});
  }
  // Keeps records; the views, or none when they were sent as bytes.
  std::vector<std::uint64_t> keep(std::size_t first, std::size_t count, std::uint32_t deadline_ms = 0) {
    client->send(get(client->new_id(), ns, first, count, deadline_ms));
    std::vector<std::uint64_t> views;
    for (bool last = false; !last;) {
      const Received m = client->next();
      EXPECT_EQ(m.header.status, Code::kOk);
      last = m.header.last() || m.header.status != Code::kOk;
      if (m.header.opcode != wire::Opcode::kGetView) continue;
      views.push_back(wire::decode<wire::GetView>(m.header, m.meta)->view);
    }
    return views;
  }
  void release(const std::vector<std::uint64_t>& views) {
    client->send(wire::frame({.request_id = 1}, wire::Release{wire::U64View(std::span<const std::uint64_t>(views))}));
  }
  [[nodiscard]] bool holds() const {
    return rig->stat("node", "kept_bytes") > 0 && rig->stat("store", "pool_bytes_pinned") > 0;
  }
  bool nothing_held() {
    return rig->until([&] {
      return rig->stat("node", "views") == 0 && rig->stat("node", "kept_bytes") == 0 &&
             rig->stat("node", "pinned_bytes") == 0 && rig->stat("node", "op_keys") == 0 &&
             rig->stat("node", "leavers") == 0 && rig->stat("store", "pool_bytes_pinned") == 0;
    });
  }
  void wait(Duration time) {
    const Time until = rig->loop->now() + time;
    while (rig->loop->now() < until) rig->loop->run_once(Millis(5));
  }

  Records records{small_namespace()};
  std::unique_ptr<Rig> rig;
  std::unique_ptr<RawClient> client;
  io::PrivateFd keeper;
  std::uint32_t ns = 0;
};

TEST_F(SessionKeepTest, IsForThoseWhoAskAndHaveTheMemory) {
  start();
  EXPECT_EQ(rig->connect(true, wire::kFeatureKeep)->features(), 0U);
  const auto other = rig->connect(true, wire::kFeatureSharedMemory);
  EXPECT_EQ(other->features(), wire::kFeatureSharedMemory);
  other->next();
  const std::uint32_t handle = other->open(records.ns());
  EXPECT_EQ(other->call(get(other->new_id(), handle, 0, 1)).header.status, Code::kInvalid);
}

TEST_F(SessionKeepTest, AllLayersComeInOneView) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 5));
  const auto views = keep(0, 5);
  EXPECT_EQ(views.size(), 1U);
  EXPECT_EQ(rig->stat("node", "view_bytes"), 5 * 3 * 4096U);
  EXPECT_TRUE(holds());
  release(views);
  EXPECT_TRUE(nothing_held());
}

TEST_F(SessionKeepTest, NoTimeEndsThem) {
  NodeOptions options = test_options();
  options.limits.view_grace = Millis(10);
  options.limits.stall_limit = Millis(50);
  start(options);
  ASSERT_TRUE(rig->put_all(records, 0, 5));
  const auto views = keep(0, 5, 20);
  wait(Millis(150));
  EXPECT_TRUE(holds());
  EXPECT_EQ(rig->stat("node", "views_expired"), 0U);
  release(views);
  EXPECT_TRUE(nothing_held());
}

TEST_F(SessionKeepTest, TheyOutlastTheConnectionUntilTheKeeperIsClosed) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 5));
  for (const bool depot_ends_it : {true, false}) {
    ASSERT_FALSE(keep(0, 5).empty());
    if (depot_ends_it) {
      release({4711});  // was never lent
      EXPECT_TRUE(client->ended());
    }
    client->vanish();
    ASSERT_TRUE(rig->until([&] { return rig->stat("node", "leavers") == 1; }));
    wait(Millis(20));
    EXPECT_TRUE(holds());
    io::UniqueFd copy(::dup(keeper.get()));
    keeper.reset();
    wait(Millis(20));
    EXPECT_TRUE(holds()) << "another copy of it is open";
    copy.reset();
    EXPECT_TRUE(nothing_held());
    connect();
  }
}

TEST_F(SessionKeepTest, AClientThatDiesLetsGo) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 5));
  ASSERT_FALSE(keep(0, 5).empty());
  keeper.reset();
  client->vanish();
  EXPECT_TRUE(nothing_held());
}

TEST_F(SessionKeepTest, ViewsThatItCopiesFromEndWithTheConnection) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 5));
  client->send(Records::get(client->new_id(), ns, 0, 5));
  while (!client->next().header.last()) {
  }
  EXPECT_GT(rig->stat("node", "views"), 0U);
  client->vanish();
  EXPECT_TRUE(nothing_held());
}

TEST_F(SessionKeepTest, WhoHasClosedItsKeeperKeepsNothingMore) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 5));
  const auto views = keep(0, 2);
  keeper.reset();
  wait(Millis(20));
  EXPECT_EQ(client->call(get(client->new_id(), ns, 2, 1)).header.status, Code::kInvalid);
  EXPECT_TRUE(holds()) << "while the connection is there, what it has is not given back";
  release(views);
  EXPECT_TRUE(nothing_held());
}

TEST_F(SessionKeepTest, WhoWritesToTheKeeperHasLetGo) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 5));
  ASSERT_FALSE(keep(0, 5).empty());
  ASSERT_EQ(::write(keeper.get(), "x", 1), 1);
  client->vanish();
  EXPECT_TRUE(nothing_held());
}

TEST_F(SessionKeepTest, BeyondTheBoundBytesAreSentAndOtherGetsAreStillLent) {
  records = Records(small_namespace(3, 1 << 20));
  start();  // of this pool a connection may keep 6 MB
  for (const std::size_t key : {0U, 4U}) ASSERT_TRUE(rig->put_all(records, key, 4));
  const auto first = keep(0, 1);
  ASSERT_EQ(first.size(), 1U);
  EXPECT_TRUE(keep(1, 1).empty());
  EXPECT_EQ(rig->stat("node", "gets_not_lent"), 1U);
  client->send(Records::get(client->new_id(), ns, 1, 1));
  EXPECT_EQ(client->next().header.opcode, wire::Opcode::kGetView);
  EXPECT_EQ(client->next().header.opcode, wire::Opcode::kGetView);
  release(first);
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "kept_bytes") == 0; }));
  EXPECT_EQ(keep(1, 1).size(), 1U);
}

// A GET of all that a connection may pin waits until nothing else of it is pinned, and views are kept for long.
TEST_F(SessionKeepTest, ALargeGetDoesNotWaitForThem) {
  records = Records(small_namespace(3, 1 << 20));
  start();  // of this pool a connection may pin 24 MiB
  for (const std::size_t key : {0U, 4U}) ASSERT_TRUE(rig->put_all(records, key, 4));
  ASSERT_EQ(keep(0, 1).size(), 1U);
  client->send(Records::get(client->new_id(), ns, 0, 8));
  for (std::uint16_t layer = 0; layer < 3; ++layer) EXPECT_EQ(client->next().header.status, Code::kOk);
  EXPECT_TRUE(holds());
}

// Views of all layers are small; bytes of all layers would be a message that others wait behind, cancels too.
TEST_F(SessionKeepTest, WhatIsNotKeptComesInMessagesAsLargeAsThoseOfOthers) {
  records = Records(small_namespace(3, 1 << 20));
  start();  // of this pool a connection may keep 6 MB
  ASSERT_TRUE(rig->put_all(records, 0, 3));
  client->send(get(client->new_id(), ns, 0, 3));
  for (std::uint16_t layer = 0; layer < 3; ++layer) {
    const Received m = client->next();
    EXPECT_EQ(m.header.opcode, wire::Opcode::kGetData);
    EXPECT_EQ(m.header.layer_count, 1);
  }
}

TEST_F(SessionKeepTest, LeaversKeepCountingInTheNodesBounds) {
  records = Records(small_namespace(3, 1 << 20));
  NodeOptions options = test_options();
  options.limits.connection_percent_max = 100;
  options.limits.kept_percent_max = 25;  // 6 MB, of the node and of a connection
  start(options);
  ASSERT_TRUE(rig->put_all(records, 0, 3));
  ASSERT_EQ(keep(0, 1).size(), 1U);
  const io::PrivateFd former = std::move(keeper);
  client->vanish();
  connect();
  EXPECT_TRUE(keep(1, 1).empty()) << "the leaver has it";
}

TEST_F(SessionKeepTest, KeysOfWhatIsKeptAreCountedApartAndBounded) {
  NodeOptions options = test_options();
  options.limits.op_keys_max = 8;  // as many may be kept, and half of them by a connection
  start(options);
  ASSERT_TRUE(rig->put_all(records, 0, 8));
  EXPECT_TRUE(keep(0, 5).empty()) << "more than its half, though it is the first";
  const auto views = keep(0, 4);
  ASSERT_FALSE(views.empty());
  EXPECT_TRUE(rig->until([&] { return rig->stat("node", "op_keys") == 0; })) << "its GET is over";
  EXPECT_TRUE(keep(4, 1).empty()) << "it has its half";
  release(views);
  ASSERT_TRUE(nothing_held());
  EXPECT_FALSE(keep(4, 4).empty());
}

TEST_F(SessionKeepTest, BeyondSoManyLeaversNobodyNewKeepsAnything) {
  NodeOptions options = test_options();
  options.limits.leavers_max = 2;
  start(options);
  ASSERT_TRUE(rig->put_all(records, 0, 5));
  std::vector<io::PrivateFd> keepers;
  for (int i = 0; i < 2; ++i) {
    ASSERT_FALSE(keep(0, 1).empty());
    keepers.push_back(std::move(keeper));
    client->vanish();
    ASSERT_TRUE(rig->until([&] { return rig->stat("node", "leavers") == keepers.size(); }));
    if (i == 0) connect();
  }
  EXPECT_EQ(rig->connect(true, kMemoryAndKeeper)->features(), wire::kFeatureSharedMemory);
  keepers.pop_back();
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "leavers") == 1; }));
  connect();
}

TEST_F(SessionKeepTest, ADrainDoesNotWaitForThem) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 2));
  ASSERT_FALSE(keep(0, 2).empty());
  bool drained = false;
  rig->node->drain(std::chrono::seconds(20), [&] { drained = true; });
  const Time begun = rig->loop->now();
  EXPECT_TRUE(rig->until([&] { return drained; }));
  EXPECT_LT(rig->loop->now() - begun, std::chrono::seconds(5));
}

}  // namespace
}  // namespace kvd::node
