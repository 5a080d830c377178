#include "client/request.h"

#include <array>

#include <gtest/gtest.h>

namespace kvd::client {
namespace {

using Numbers = std::vector<std::uint16_t>;

Namespace make_namespace(const std::string& fingerprint, std::uint16_t layers = 4) {
  Namespace ns;
  ns.fingerprint = fingerprint;
  for (const std::uint16_t group : {std::uint16_t{0}, std::uint16_t{3}}) {
    ns.groups.push_back({.group = group, .layers = layers, .slab_bytes = 4096, .block_tokens = 16, .order = "LBHNC"});
  }
  return ns;
}

class RequestTest : public testing::Test {
 protected:
  RequestTest() : ns_(*namespaces_.add(make_namespace("f"))), memory_(1 << 20) {
    region_ = *regions_.add(memory_.data(), memory_.size(), RegionKind::kHost);
  }
  [[nodiscard]] KeyList keys(std::size_t count, std::uint16_t bytes = 8) const {
    return {.bytes = Bytes(memory_).first(count * bytes), .key_bytes = bytes, .native = false};
  }
  Code match(const KeyList& list, const Numbers& shards, const Numbers& groups, NamespaceId ns) {
    const auto op = make_match(namespaces_, {.ns = ns, .shards = shards, .groups = groups, .keys = list});
    return op ? Code::kOk : op.error().code;
  }
  GetRequest get(std::uint16_t first, std::uint16_t count) {
    return {.ns = ns_,
            .layer_first = first,
            .layer_count = count,
            .keys = keys(2),
            .dest = {.region = region_,
                     .layer_offset = std::span(layers_).first(count == 0 ? 4U - first : count),
                     .block_offset = blocks_,
                     .runs = {}}};
  }

  NamespaceTable namespaces_;
  RegionTable regions_;
  NamespaceId ns_;
  RegionId region_;
  std::vector<std::byte> memory_;
  std::array<std::uint64_t, 4> layers_{0, 8192, 16384, 24576};
  std::array<std::uint64_t, 2> blocks_{0, 4096};
};

TEST_F(RequestTest, MatchTakesWhatTheLimitsAllow) {
  EXPECT_EQ(match(keys(1), {0}, {0}, ns_), Code::kOk);
  EXPECT_EQ(match(keys(4096), {0}, {0}, ns_), Code::kOk);
  EXPECT_EQ(match(keys(4, 16), {0, 1}, {0, 3}, ns_), Code::kOk);
  EXPECT_EQ(match(keys(2, 256), Numbers(64, 1), {0}, ns_), Code::kOk);
}

TEST_F(RequestTest, MatchRefusesWhatCanNeverSucceed) {
  EXPECT_EQ(match(keys(1), {0}, {0}, 0), Code::kInvalid);
  EXPECT_EQ(match(keys(1), {0}, {0}, 2), Code::kInvalid);
  EXPECT_EQ(match(keys(0), {0}, {0}, ns_), Code::kInvalid);
  EXPECT_EQ(match(keys(4097), {0}, {0}, ns_), Code::kInvalid);
  EXPECT_EQ(match(keys(1, 257), {0}, {0}, ns_), Code::kInvalid);
  EXPECT_EQ(match({.bytes = Bytes(memory_).first(8), .key_bytes = 0}, {0}, {0}, ns_), Code::kInvalid);
  EXPECT_EQ(match({.bytes = Bytes(memory_).first(9), .key_bytes = 8}, {0}, {0}, ns_), Code::kInvalid);
  EXPECT_EQ(match({.bytes = Bytes(memory_).first(8), .key_bytes = 8, .native = true}, {0}, {0}, ns_), Code::kInvalid);
  EXPECT_EQ(match(keys(1), {}, {0}, ns_), Code::kInvalid);
  EXPECT_EQ(match(keys(1), Numbers(65, 0), {0}, ns_), Code::kInvalid);
  EXPECT_EQ(match(keys(1), {0}, {}, ns_), Code::kInvalid);
  EXPECT_EQ(match(keys(1), {0}, {1}, ns_), Code::kInvalid);
  EXPECT_EQ(match(keys(3), {0}, {0, 3}, ns_), Code::kInvalid);
}

TEST_F(RequestTest, GetChecksLayersAndPlaces) {
  EXPECT_TRUE(make_get(namespaces_, regions_, get(0, 0)).has_value());
  EXPECT_EQ(make_get(namespaces_, regions_, get(0, 0))->layer_count, 4);
  EXPECT_EQ(make_get(namespaces_, regions_, get(1, 0))->layer_count, 3);
  EXPECT_TRUE(make_get(namespaces_, regions_, get(3, 1)).has_value());
  EXPECT_FALSE(make_get(namespaces_, regions_, get(3, 2)).has_value());
  GetRequest request = get(0, 4);
  request.layer_first = 4;
  EXPECT_FALSE(make_get(namespaces_, regions_, request).has_value());
  request = get(0, 4);
  request.dest.region = RegionId{99};
  EXPECT_FALSE(make_get(namespaces_, regions_, request).has_value());
  request = get(0, 4);
  request.group = 7;
  EXPECT_FALSE(make_get(namespaces_, regions_, request).has_value());
}

TEST_F(RequestTest, ARequestThatIsRefusedLeavesTheRegionFree) {
  GetRequest request = get(0, 4);
  request.dest.block_offset = std::span(blocks_).first(1);
  EXPECT_FALSE(make_get(namespaces_, regions_, request).has_value());
  EXPECT_TRUE(regions_.remove(region_).has_value());
}

TEST_F(RequestTest, SeedsDependOnKeyShardGroupAndNamespace) {
  const auto seeds = [&](NamespaceId ns, std::uint16_t shard, std::uint16_t group) {
    GetRequest request = get(0, 0);
    request.ns = ns;
    request.shard = shard;
    request.group = group;
    return make_get(namespaces_, regions_, request)->seeds;
  };
  memory_[0] = std::byte{1};  // the two keys differ
  const auto base = seeds(ns_, 0, 0);
  EXPECT_NE(base[0], base[1]);
  EXPECT_EQ(base, seeds(ns_, 0, 0));
  EXPECT_NE(base, seeds(ns_, 1, 0));
  EXPECT_NE(base, seeds(ns_, 0, 3));
  EXPECT_NE(base, seeds(*namespaces_.add(make_namespace("g")), 0, 0));
}

TEST_F(RequestTest, PutRefusesTooManyPieces) {
  const kvd::Run scattered{.offset = 0, .stride = 2, .count = 4096, .length = 1};
  std::vector<std::uint64_t> blocks(300, 0);
  PutRequest request{
      .ns = ns_,
      .keys = keys(300),
      .src = {.region = region_, .layer_offset = layers_, .block_offset = blocks, .runs = std::span(&scattered, 1)}};
  EXPECT_EQ(make_put(namespaces_, regions_, request).error().code, Code::kInvalid);
  request.keys = keys(200);
  request.src.block_offset = std::span(blocks).first(200);
  EXPECT_TRUE(make_put(namespaces_, regions_, request).has_value());
}

TEST(NamespaceTable, GivesBackWhatIsClosedAsOftenAsItWasOpened) {
  NamespaceTable table;
  const NamespaceId id = *table.add(make_namespace("a"));
  EXPECT_EQ(*table.add(make_namespace("a")), id);
  EXPECT_FALSE(*table.close(id));
  EXPECT_NE(table.find(id), nullptr);
  EXPECT_TRUE(*table.close(id));
  EXPECT_EQ(table.find(id), nullptr);
  EXPECT_EQ(table.close(id).error().code, Code::kNotFound);
  EXPECT_NE(*table.add(make_namespace("a")), id) << "an id is never used again";
  for (std::size_t i = 1; i < kNamespacesMax; ++i) ASSERT_TRUE(table.add(make_namespace(std::to_string(i))));
  EXPECT_EQ(table.add(make_namespace("b")).error().code, Code::kNoSpace);
  EXPECT_EQ(table.all().size(), kNamespacesMax);
}

TEST(NamespaceTable, KnowsEqualNamespacesAgain) {
  NamespaceTable table;
  const auto first = table.add(make_namespace("a"));
  EXPECT_EQ(*table.add(make_namespace("a")), *first);
  EXPECT_NE(*table.add(make_namespace("b")), *first);
  EXPECT_EQ(table.add(make_namespace("a", 5)).error().code, Code::kInvalid) << "another schema";
  EXPECT_EQ(table.add(make_namespace("")).error().code, Code::kInvalid);
}

TEST(RegionTable, ARegionInUseStaysRegistered) {
  RegionTable table;
  std::array<std::byte, 16> memory;
  const RegionId id = *table.add(memory.data(), memory.size(), RegionKind::kHost);
  {
    const auto use = table.use(id);
    RegionUse other = std::move(*table.use(id));
    EXPECT_EQ(table.remove(id).error().code, Code::kBusy);
  }
  EXPECT_TRUE(table.remove(id).has_value());
  EXPECT_EQ(table.remove(id).error().code, Code::kNotFound);
  EXPECT_FALSE(table.use(id).has_value());
  EXPECT_FALSE(table.add(nullptr, 1, RegionKind::kHost).has_value());
  EXPECT_FALSE(table.add(memory.data(), 0, RegionKind::kHost).has_value());
  EXPECT_FALSE(table.add(memory.data(), 1, RegionKind::kDevice).has_value());
}

}  // namespace
}  // namespace kvd::client
