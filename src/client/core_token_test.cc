// A client whose depot asks for a token, in virtual time.
#include <memory>

#include <gtest/gtest.h>

#include "client/testing/core_rig.h"

namespace kvd::client {
namespace {

class CoreToken : public testing::Test {
 protected:
  void start(const std::string& wanted, std::function<Result<std::string>()> token, bool shared_memory = false,
             const ScriptChange& change = {}) {
    RigOptions options;
    options.connect = false;
    options.shared_memory = shared_memory;
    options.token = std::move(token);
    rig = std::make_unique<CoreRig>(options);
    rig->depot->script.token = wanted;
    rig->depot->script.shares = shared_memory;
    if (change) change(rig->depot->script);
    rig->store_records();
    rig->start_core();
  }
  static std::function<Result<std::string>()> holding(std::string token) {
    return [token = std::move(token)] { return Result<std::string>(token); };
  }
  [[nodiscard]] bool gets() const { return rig->finish(rig->get()).code == Code::kOk; }
  std::unique_ptr<CoreRig> rig;
};

TEST_F(CoreToken, IsShownOnBothConnections) {
  start("kvd_a", holding("kvd_a"));
  ASSERT_TRUE(rig->wait_connected());
  EXPECT_TRUE(gets());
  EXPECT_EQ(rig->depot->tokens_shown, (std::vector<std::string>{"kvd_a", "kvd_a"}));
}

TEST_F(CoreToken, IsKeptFromADepotThatDoesNotAsk) {
  start("", holding("kvd_a"));
  ASSERT_TRUE(rig->wait_connected());
  EXPECT_TRUE(gets());
  EXPECT_TRUE(rig->depot->tokens_shown.empty());
}

TEST_F(CoreToken, MemoryIsGivenBehindIt) {
  start("kvd_a", holding("kvd_a"), true);
  ASSERT_TRUE(rig->wait_connected());
  EXPECT_TRUE(gets());
  EXPECT_GT(rig->state.get.bytes_shared.value(), 0U);
}

TEST_F(CoreToken, MemoryMayBeAgreedOnWithHelloAsWell) {
  start("kvd_a", holding("kvd_a"), true, [](FakeScript& script) { script.early = true; });
  ASSERT_TRUE(rig->wait_connected());
  EXPECT_TRUE(gets());
  EXPECT_GT(rig->state.get.bytes_shared.value(), 0U);
}

// As depots with credentials do: the pool is lent to nobody, and an arena is the connection's own.
TEST_F(CoreToken, AnArenaIsGivenBehindItAndPutsGoThroughIt) {
  for (const bool gives : {true, false}) {
    start("kvd_a", holding("kvd_a"), true, [gives](FakeScript& script) {
      script.shares = false;
      script.arena_bytes = gives ? std::uint64_t{16} << 20 : 0;
    });
    ASSERT_TRUE(rig->wait_connected());
    rig->loop.settle();
    rig->fill_source();
    EXPECT_EQ(rig->finish(rig->put()).code, Code::kOk);
    EXPECT_EQ(rig->depot->arena_put_bytes, gives ? rig->memory.size() : 0);
    EXPECT_EQ(rig->depot->seen[wire::Opcode::kPutData] > 0, !gives);
    EXPECT_TRUE(gets());
    EXPECT_EQ(rig->state.get.bytes_shared.value(), 0U);
  }
}

TEST_F(CoreToken, OnlyThoseWhoCouldTakeMemoryAskToBeToldOfIt) {
  for (const bool shared_memory : {true, false}) {
    start("kvd_a", holding("kvd_a"), shared_memory);
    ASSERT_TRUE(rig->wait_connected());
    ASSERT_EQ(rig->depot->features_asked.size(), 2U);
    for (const std::uint64_t asked : rig->depot->features_asked) {
      EXPECT_EQ((asked & wire::kFeatureAuthFeatures) != 0, shared_memory);
      EXPECT_NE(asked & wire::kFeatureToken, 0U);
    }
  }
}

TEST_F(CoreToken, AnAnswerThatWasNotAgreedOnEndsTheConnection) {
  const std::vector<ScriptChange> wrong{
      [](FakeScript& script) { script.late_missing = true; },
      [](FakeScript& script) { script.late_features = std::uint64_t{1} << 40; },
  };
  for (const ScriptChange& change : wrong) {
    start("kvd_a", holding("kvd_a"), true, change);
    EXPECT_FALSE(rig->wait_connected());
    EXPECT_EQ(rig->state.error().code, Code::kCorrupt);
    rig->depot->script.late_missing = false;
    rig->depot->script.late_features = 0;
    ASSERT_TRUE(rig->wait_connected());
    EXPECT_TRUE(gets());
  }
}

TEST_F(CoreToken, AWrongOneIsRefusedAndTriedAgainAtThePaceOfLosses) {
  start("kvd_a", holding("kvd_b"));
  EXPECT_FALSE(rig->wait_connected(std::chrono::seconds(10)));
  EXPECT_EQ(rig->state.refusal(), "invalid: unauthorized");
  EXPECT_EQ(rig->state.error().code, Code::kUnavailable);
  EXPECT_LE(rig->depot->tokens_shown.size(), 2U * 20);
  rig->depot->script.token = "kvd_b";
  ASSERT_TRUE(rig->wait_connected());
  EXPECT_TRUE(gets());
}

TEST_F(CoreToken, WithoutOneADepotThatAsksRefuses) {
  start("kvd_a", {});
  EXPECT_FALSE(rig->wait_connected());
  EXPECT_EQ(rig->state.refusal(), "invalid: unauthorized");
}

TEST_F(CoreToken, IsReadAgainForEachConnection) {
  std::string token = "kvd_old";
  start("kvd_old", [&token] { return Result<std::string>(token); });
  ASSERT_TRUE(rig->wait_connected());
  rig->depot->script.token = token = "kvd_new";
  rig->depot->drop_connections();
  rig->loop.settle();
  ASSERT_TRUE(rig->wait_connected());
  EXPECT_TRUE(gets());
}

TEST_F(CoreToken, OneThatCannotBeReadIsALoss) {
  bool there = false;
  start("kvd_a", [&there]() -> Result<std::string> {
    if (!there) return fail(Code::kInvalid, "no token today");
    return std::string("kvd_a");
  });
  EXPECT_FALSE(rig->wait_connected());
  EXPECT_STREQ(rig->state.error().what, "no token today");
  EXPECT_TRUE(rig->depot->features_asked.empty());
  there = true;
  EXPECT_TRUE(rig->wait_connected());
}

}  // namespace
}  // namespace kvd::client
