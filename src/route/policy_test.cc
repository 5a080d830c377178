// Tests of the routing policies on small fleets.
#include "route/policy.h"

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvd::route {
namespace {

class Cached final : public PrefixMatch {
 public:
  explicit Cached(std::array<std::uint32_t, 3> tokens) : tokens_(tokens) {}
  std::uint32_t tokens(std::uint32_t instance) const override { return tokens_[instance]; }
  std::uint32_t prompt_tokens() const override { return 1000; }

 private:
  std::array<std::uint32_t, 3> tokens_;
};

struct Fleet {
  std::array<std::uint32_t, 3> outstanding;
  std::array<std::uint32_t, 3> waiting{};
  std::array<float, 3> used{};
  FleetView view() const { return {outstanding, waiting, used}; }
};

TEST(Policy, KnowsItsNames) {
  for (const std::string_view name : kPolicyNames) EXPECT_NE(make_policy(name, 1), nullptr) << name;
  EXPECT_EQ(make_policy("best", 1), nullptr);
}

TEST(Policy, RoundRobinStartsAtTheFirst) {
  const Fleet fleet{{0, 0, 0}};
  const auto policy = make_policy("round-robin", 1);
  for (const std::uint32_t expected : {0U, 1U, 2U, 0U}) EXPECT_EQ(policy->pick(fleet.view(), Cached({})), expected);
}

TEST(Policy, RandomReachesAllAndReplays) {
  const Fleet fleet{{0, 0, 0}};
  const auto a = make_policy("random", 7);
  const auto b = make_policy("random", 7);
  std::set<std::uint32_t> seen;
  for (int i = 0; i < 100; ++i) {
    const std::uint32_t pick = a->pick(fleet.view(), Cached({}));
    EXPECT_EQ(pick, b->pick(fleet.view(), Cached({})));
    seen.insert(pick);
  }
  EXPECT_EQ(seen.size(), 3U);
}

TEST(Policy, LeastRequestTakesTheShortest) {
  EXPECT_EQ(make_policy("least-request", 1)->pick(Fleet{{3, 1, 2}}.view(), Cached({})), 1U);
}

TEST(Policy, LeastRequestTakesTheFirstOfTheShortestInFleetsOfAnySize) {
  const auto policy = make_policy("least-request", 1);
  Random random(3);
  for (const std::size_t instances : {1UZ, 15UZ, 17UZ, 255UZ, 256UZ, 257UZ, 1000UZ}) {
    for (int i = 0; i < 100; ++i) {
      std::vector<std::uint32_t> outstanding(instances);
      for (std::uint32_t& value : outstanding) value = static_cast<std::uint32_t>(random.below(instances));
      const auto first = std::ranges::min_element(outstanding) - outstanding.begin();
      ASSERT_EQ(policy->pick({outstanding, {}, {}}, Cached({})), first) << instances << " instances";
    }
  }
}

TEST(Policy, LoadWeighsQueueAndCacheAlike) {
  Fleet fleet{{0, 0, 0}};
  fleet.waiting = {4, 0, 2};
  fleet.used = {0.0F, 0.9F, 0.2F};
  // Scores: 0 + 1, 1 + 0.1, 0.5 + 0.8.
  EXPECT_EQ(make_policy("load", 1)->pick(fleet.view(), Cached({})), 2U);
}

TEST(Policy, AffinityFollowsThePrefixUntilOneIsOverloaded) {
  const auto policy = make_policy("prefix-affinity", 1);
  EXPECT_EQ(policy->pick(Fleet{{9, 1, 2}}.view(), Cached({512, 0, 0})), 0U);
  EXPECT_EQ(policy->pick(Fleet{{9, 1, 2}}.view(), Cached({299, 0, 0})), 1U);  // too little of the prompt
  EXPECT_EQ(policy->pick(Fleet{{99, 1, 2}}.view(), Cached({512, 0, 0})), 1U);
  EXPECT_EQ(policy->pick(Fleet{{9, 4, 2}}.view(), Cached({0, 0, 0})), 2U);  // no prefix anywhere: the shortest queue
}

}  // namespace
}  // namespace kvd::route
