// What tenants leave each other of the pool.
#include "node/tenant_parts.h"

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "auth/testing/tokens.h"
#include "node/pins.h"
#include "node/testing/resp_client.h"
#include "node/testing/rig.h"

namespace kvd::node {
namespace {

class TenantPartsTest : public testing::Test {
 protected:
  using Own = TenantParts::SharedOwn;
  void list(const std::vector<Own>& listed, const std::vector<Own>& others = {}) {
    parts_.set_count(listed.size());
    for (const Own& own : listed) parts_.set_listed(*own, true);
    for (const Own& own : others) parts_.set_listed(*own, false);
  }
  // What is granted, one at a time.
  std::uint64_t take_all(const Own& own) {
    std::uint64_t count = 0;
    for (; parts_.may_take(*own, 1); ++count) taken_.push_back(parts_.take(own, 1));
    return count;
  }

  TenantParts parts_{200};
  std::deque<TenantParts::Share> taken_;
  const Own a_ = std::make_shared<TenantParts::Own>(), b_ = std::make_shared<TenantParts::Own>(),
            c_ = std::make_shared<TenantParts::Own>();
};

TEST_F(TenantPartsTest, WhoTakesAllLeavesEachOtherItsPart) {
  list({a_, b_});
  EXPECT_TRUE(parts_.may_take(*a_, 175));
  EXPECT_FALSE(parts_.may_take(*a_, 176));
  EXPECT_EQ(take_all(a_), 175U);
  EXPECT_TRUE(parts_.is_within_part(*b_, 25));
  EXPECT_FALSE(parts_.is_within_part(*b_, 26));
  EXPECT_EQ(take_all(b_), 25U);
  taken_.pop_back();
  EXPECT_FALSE(parts_.may_take(*a_, 1)) << "kept for b";
  EXPECT_EQ(parts_.kept(), 1U);
  taken_.pop_front();
  EXPECT_TRUE(parts_.may_take(*a_, 1)) << "its own comes back to all";
  EXPECT_EQ(a_->used(), 174U);
  EXPECT_EQ(b_->used(), 24U);
}

TEST_F(TenantPartsTest, OneTenantHasAll) {
  list({a_});
  EXPECT_EQ(take_all(a_), 200U);
}

TEST_F(TenantPartsTest, WhoIsNotListedHasWhatIsForAll) {
  list({a_, b_}, {c_});
  EXPECT_EQ(take_all(c_), 150U);
  EXPECT_EQ(take_all(a_), 25U);
  EXPECT_EQ(take_all(b_), 25U);
}

TEST_F(TenantPartsTest, AnotherListHoldsForWhatIsTakenThen) {
  list({a_});
  EXPECT_EQ(take_all(a_), 200U);
  list({a_, b_, c_});
  EXPECT_FALSE(parts_.may_take(*b_, 1)) << "there is nothing left";
  taken_.pop_front();
  EXPECT_TRUE(parts_.may_take(*b_, 1)) << "though a has c's part, too";
  EXPECT_FALSE(parts_.may_take(*a_, 1));
  list({b_}, {a_});
  EXPECT_FALSE(parts_.may_take(*a_, 1));
  taken_.clear();
  EXPECT_EQ(take_all(a_), 150U);
}

TEST_F(TenantPartsTest, ASharesEndIsTheSameHoweverItIsMoved) {
  list({a_, b_});
  TenantParts::Share share = parts_.take(a_, 30);
  TenantParts::Share other = parts_.take(b_, 20);
  other = std::move(share);
  EXPECT_EQ(a_->used(), 30U);
  EXPECT_EQ(b_->used(), 0U);
  TenantParts::Share last(std::move(other));
  other.release();
  EXPECT_EQ(a_->used(), 30U);
  last.release();
  EXPECT_EQ(a_->used(), 0U);
  EXPECT_TRUE(parts_.may_take(*a_, 175));
}

TEST_F(TenantPartsTest, WhoIsRefusedIsToldOfRoom) {
  list({a_, b_});
  Budget node(200);
  ConnectionBudget connection(200, node);
  connection.set_tenant(parts_, a_);
  EXPECT_TRUE(connection.is_fair(200)) << "nobody has anything";
  ConnectionBudget::Taken taken = connection.take_of_all(140);
  EXPECT_FALSE(connection.is_fair(10)) << "more than four times of what would be left beside b's part";
  EXPECT_TRUE(ConnectionBudget(200, node).is_fair(10)) << "of no tenant";
  int told = 0;
  node.on_room = [&told] { ++told; };
  EXPECT_FALSE(connection.is_fair(36));
  taken.release();
  EXPECT_EQ(told, 1);
  EXPECT_EQ(a_->used(), 0U);
}

// Clients of one tenant who want everything, beside one of another of so many.
class TenantPinsTest : public testing::TestWithParam<std::size_t> {};

TEST_P(TenantPinsTest, ATenantFindsItsPartHoweverManyClientsAnotherHas) {
  constexpr std::uint64_t kGet = 16, kNode = 512 * kGet;
  Budget node(kNode);
  TenantParts parts(kNode);
  const auto one = std::make_shared<TenantParts::Own>(), other = std::make_shared<TenantParts::Own>();
  std::vector<TenantParts::Own> idle(GetParam() - 2);
  parts.set_count(GetParam());
  for (TenantParts::Own& own : idle) parts.set_listed(own, true);
  parts.set_listed(*one, true);
  parts.set_listed(*other, true);
  const std::uint64_t part = kNode / 4 / GetParam();
  std::vector<std::unique_ptr<Pins>> crowd;
  std::vector<Pins::Taken> taken;
  for (int i = 0; i < 100; ++i) {
    Pins& pins = *crowd.emplace_back(std::make_unique<Pins>(kNode / 2, node));
    pins.set_tenant(parts, one);
    pins.taken = [] { return UINT64_MAX; };
  }
  for (bool more = true; more;) {
    more = false;
    for (const auto& pins : crowd) {
      if (!pins->may_take(kGet)) continue;
      taken.push_back(pins->take_of_all(kGet));
      more = true;
    }
  }
  EXPECT_GE(one->used(), kNode * 2 / 3);
  EXPECT_LE(one->used(), kNode - (GetParam() - 1) * part);
  Pins pins(kNode / 2, node);
  pins.set_tenant(parts, other);
  std::uint64_t got = 0;
  for (; pins.may_take(kGet) && got < part; got += kGet) taken.push_back(pins.take_of_all(kGet));
  EXPECT_EQ(got, part / kGet * kGet) << "though it has taken nothing yet";
  EXPECT_FALSE(pins.may_take(kGet)) << "and no more";
  taken.clear();
  EXPECT_TRUE(crowd[0]->may_take(kNode / 2)) << "nobody holds anything";
}

INSTANTIATE_TEST_SUITE_P(Tenants, TenantPinsTest, testing::Values(2, 4, 16));

// Token 1 is of tenant a, 2 of tenant b. Unfinished puts may have half of the pool's 64 MiB.
class TenantNodeTest : public testing::Test {
 protected:
  static constexpr std::size_t kMiB = std::size_t{1} << 20;
  static NodeOptions with_tenants(std::uint32_t op_keys_max) {
    NodeOptions options = test_options();
    options.limits.leases_max = 16;
    options.limits.lease_pins_max = 32;
    options.limits.op_keys_max = op_keys_max;
    options.store.pinned_percent_max = 25;  // by leases
    options.limits.contended_stall_limit = Millis(20);
    options.store.flash_bytes = 0;
    const std::string lines =
        auth::token_line(1, "n1", "a", "read,write") + auth::token_line(2, "n2", "b", "read,write");
    options.authority = auth::shared_authority(lines);
    return options;
  }
  explicit TenantNodeTest(std::uint32_t op_keys_max = Limits{}.op_keys_max, std::uint32_t slab_bytes = kMiB / 8)
      : rig_(with_tenants(op_keys_max)), records_(small_namespace(8, slab_bytes)) {}
  struct Putter {
    std::unique_ptr<RawClient> client;
    std::uint32_t ns = 0;
  };
  Putter enter(int token) {
    Putter putter{.client = rig_.connect(false)};
    putter.client->send(wire::frame({}, wire::Hello{.features = wire::kFeatureToken, .name = "test"}));
    putter.client->next();
    putter.client->call(wire::frame({}, wire::Auth{auth::token_number(token)}));
    Namespace ns = records_.ns();
    ns.tenant = token == 1 ? "a" : "b";
    putter.ns = putter.client->open(ns);
    return putter;
  }

  // Whether a PUT of so many records is taken whole.
  bool put(const Putter& putter, std::size_t first, std::size_t count) {
    const std::uint64_t id = putter.client->new_id();
    putter.client->send(records_.put(id, putter.ns, first, count));
    putter.client->send(records_.put_head(id, first, count, 0, 8), records_.put_body(first, count, 0, 8));
    const net::Received done = putter.client->next();
    const auto reply = wire::decode<wire::PutReply>(done.header, done.meta);
    return done.header.status == Code::kOk && reply && wire::count_bits(reply->failed) == 0;
  }
  // Whether so many records are found and leased.
  static bool lease(const Putter& putter, std::uint32_t count) {
    const auto keys = Records::keys(1, count);
    const net::Received m = putter.client->call(
        wire::frame({.request_id = putter.client->new_id()}, wire::Match{.ns = putter.ns,
                                                                         .lease_ms = 60'000,
                                                                         .blocks = count,
                                                                         .shards = {0},
                                                                         .groups = {0},
                                                                         .keys = {keys, 16, true}}));
    const auto reply = wire::decode<wire::MatchReply>(m.header, m.meta);
    EXPECT_TRUE(reply && reply->prefix_blocks == count);
    return reply && reply->lease != 0;
  }

  Rig rig_;
  const Records records_;
};

class TenantKeysTest : public TenantNodeTest {
 protected:
  TenantKeysTest() : TenantNodeTest(32, 4096) {}
};

TEST_F(TenantNodeTest, UnfinishedPutsOfATenantLeaveAnotherItsPart) {
  std::vector<Putter> crowd;
  for (std::size_t i = 0; i < 6; ++i) {
    const Putter& putter = crowd.emplace_back(enter(1));
    putter.client->send(records_.put(putter.client->new_id(), putter.ns, 100 * i, 14));
    putter.client->call(wire::frame({.request_id = putter.client->new_id()}, wire::Ping{}));
  }
  EXPECT_LE(rig_.stat("node", "unfinished_bytes"), 28 * kMiB);
  EXPECT_GE(rig_.stat("node", "unfinished_bytes"), 24 * kMiB);
  const Putter other = enter(2);
  EXPECT_TRUE(put(other, 1, 3));
}

// What is kept for tenants is not what others could have.
TEST_F(TenantNodeTest, WhoDoesNotReadIsCutWhereTheRestIsKeptForTenants) {
  constexpr std::size_t kValue = 700'000;
  const Putter reader = enter(2);
  for (std::size_t first = 1; first < 24; first += 8) ASSERT_TRUE(put(reader, first, 8));
  std::deque<RespClient> deaf;
  while (rig_.stat("node", "pinned_bytes") < 20 * kMiB) {
    const std::uint64_t before = rig_.stat("node", "pinned_bytes");
    RespClient& client = deaf.emplace_back(rig_);
    client.send(resp_command({"AUTH", auth::token_number(1)}));
    ASSERT_EQ(client.line(), "+OK\r\n");
    if (deaf.size() == 1) {
      client.send(resp_command({"SET", "k", resp_text(kValue, 1)}));
      ASSERT_EQ(client.line(), "+OK\r\n");
    }
    client.send(resp_command({"GET", "k"}));
    ASSERT_TRUE(rig_.until([&] { return rig_.stat("node", "pinned_bytes") > before; }));
  }
  ASSERT_LT(rig_.stat("node", "pinned_bytes"), 22 * kMiB);
  reader.client->send(Records::get(reader.client->new_id(), reader.ns, 1, 23));
  EXPECT_EQ(reader.client->next().header.status, Code::kOk);
  EXPECT_LT(rig_.stat("node", "resp_connections"), deaf.size());
  EXPECT_EQ(rig_.stat("net", "stalled"), deaf.size() - rig_.stat("node", "resp_connections"));
}

TEST_F(TenantNodeTest, LeasesOfATenantLeaveAnotherItsPart) {
  const std::array crowd{enter(1), enter(1), enter(1)};
  const Putter other = enter(2);
  ASSERT_TRUE(put(crowd[0], 1, 8));
  ASSERT_TRUE(put(other, 1, 8));
  int leases = 0;
  for (int round = 0; round < 5; ++round)
    for (const Putter& putter : crowd) leases += lease(putter, 1) ? 1 : 0;
  EXPECT_EQ(leases, 14);
  EXPECT_TRUE(lease(other, 1));
  EXPECT_TRUE(lease(other, 8)) << "of which as many are kept as there is room for";
  EXPECT_FALSE(lease(other, 1));
  EXPECT_EQ(rig_.stat("node", "leases"), 16U);
  for (const Putter& putter : crowd) putter.client->vanish();
  EXPECT_TRUE(rig_.until([&] { return rig_.stat("node", "leases") == 2; }));
  EXPECT_TRUE(lease(other, 1));
}

// Of 32 records each tenant has 4 for itself.
TEST_F(TenantNodeTest, LeasedRecordsOfATenantLeaveAnotherItsPart) {
  const std::array crowd{enter(1), enter(1)};
  const Putter other = enter(2);
  ASSERT_TRUE(put(crowd[0], 1, 8));
  ASSERT_TRUE(put(other, 1, 8));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(lease(crowd[i % 2], 8));
  EXPECT_TRUE(lease(other, 8));
}

// Of 16 MiB each tenant has 2 for itself. A record counts once, however many leases of the tenant have it.
TEST_F(TenantNodeTest, BytesThatATenantLeasesLeaveAnotherItsPart) {
  const Putter other = enter(2);
  ASSERT_TRUE(put(other, 1, 1));
  for (std::uint64_t round = 0; round < 2; ++round) {
    const std::array crowd{enter(1), enter(1)};
    if (round == 0) {
      for (std::size_t first = 1; first < 17; first += 8) ASSERT_TRUE(put(crowd[0], first, 8));
    }
    EXPECT_TRUE(lease(crowd[0], 16)) << "of which as many are kept as there is room for";
    EXPECT_TRUE(lease(crowd[1], 4));
    EXPECT_EQ(rig_.stat("store", "pool_bytes_pinned") / kMiB, 13U + round);
    EXPECT_TRUE(lease(other, 1));
    EXPECT_EQ(rig_.stat("store", "pool_bytes_pinned") / kMiB, 14U);
    for (const Putter& putter : crowd) putter.client->vanish();
    EXPECT_TRUE(rig_.until([&] { return rig_.stat("store", "pool_bytes_pinned") / kMiB == 1; }));
  }
}

TEST_F(TenantKeysTest, KeysUnderWayOfATenantLeaveAnotherItsPart) {
  const std::array crowd{enter(1), enter(1), enter(1), enter(1)};
  for (std::size_t i = 0; i < 40; ++i) {
    const Putter& putter = crowd[i % crowd.size()];
    putter.client->send(records_.put(putter.client->new_id(), putter.ns, 1000 + i, 1));
    putter.client->call(wire::frame({.request_id = putter.client->new_id()}, wire::Ping{}));
  }
  EXPECT_LE(rig_.stat("node", "op_keys"), 28U);
  EXPECT_GE(rig_.stat("node", "op_keys"), 24U);
  EXPECT_TRUE(put(enter(2), 1, 4));
}

TEST_F(TenantNodeTest, UnfinishedSetsOfATenantLeaveAnotherItsPart) {
  const auto set = [](std::size_t bytes) { return "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$" + std::to_string(bytes) + "\r\n"; };
  std::deque<RespClient> crowd;
  for (int i = 0; i < 25; ++i) {
    RespClient& client = crowd.emplace_back(rig_);
    client.send(resp_command({"AUTH", auth::token_number(1)}));
    EXPECT_EQ(client.line(), "+OK\r\n");
    client.send(set(i < 5 ? 5 * kMiB : kMiB * 2 / 5));
  }
  EXPECT_TRUE(rig_.until([&] { return rig_.stat("node", "unfinished_bytes") >= 27 * kMiB; }));
  RespClient other(rig_);
  other.send(resp_command({"AUTH", auth::token_number(2)}));
  EXPECT_EQ(other.line(), "+OK\r\n");
  other.send(set(3 * kMiB) + resp_text(3 * kMiB, 1) + "\r\n");
  EXPECT_EQ(other.line(), "+OK\r\n");
}

}  // namespace
}  // namespace kvd::node
