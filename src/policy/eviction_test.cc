// Tests of the eviction policies: order of victims under use, demotion and removal, against a plain list.
#include "policy/eviction.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvd::policy {
namespace {

std::vector<std::uint32_t> order_of(const EvictionPolicy& policy) {
  std::vector<std::uint32_t> order;
  for (auto s = policy.victim(); s; s = policy.next_victim(*s)) order.push_back(*s);
  return order;
}

TEST(SegmentLru, GivesUpTheSegmentUnusedForLongest) {
  const auto policy = make_eviction(Eviction::kLru, 4);
  for (std::uint32_t s : {0u, 1u, 2u}) policy->add(s);
  policy->touch(0);
  EXPECT_EQ(order_of(*policy), (std::vector<std::uint32_t>{1, 2, 0}));
}

TEST(SegmentFifo, IgnoresUse) {
  const auto policy = make_eviction(Eviction::kFifo, 4);
  for (std::uint32_t s : {2u, 1u, 0u}) policy->add(s);
  policy->touch(2);
  EXPECT_EQ(order_of(*policy), (std::vector<std::uint32_t>{2, 1, 0}));
}

TEST(EvictionPolicy, UnknownSegmentsAreIgnored) {
  for (const auto& policy : {make_eviction(Eviction::kLru, 4), make_eviction(Eviction::kFifo, 4)}) {
    policy->touch(3);
    policy->demote(3);
    policy->remove(3);
    EXPECT_FALSE(policy->victim().has_value());
  }
}

TEST(EvictionPolicy, ADemotedSegmentIsTheNextVictim) {
  for (const auto& policy : {make_eviction(Eviction::kLru, 4), make_eviction(Eviction::kFifo, 4)}) {
    for (std::uint32_t s : {0u, 1u, 2u}) policy->add(s);
    policy->demote(2);
    EXPECT_EQ(order_of(*policy), (std::vector<std::uint32_t>{2, 0, 1}));
  }
}

TEST(SegmentLru, AgreesWithAPlainListUnderRandomUse) {
  constexpr std::uint32_t kSegments = 17;
  const auto policy = make_eviction(Eviction::kLru, kSegments);
  std::vector<std::uint32_t> model;
  Random random(1);
  for (int i = 0; i < 20'000; ++i) {
    const auto s = static_cast<std::uint32_t>(random.below(kSegments));
    const auto known = std::find(model.begin(), model.end(), s);
    switch (random.below(4)) {
      case 0:
        if (known != model.end()) break;
        policy->add(s);
        model.push_back(s);
        break;
      case 1:
        policy->remove(s);
        if (known != model.end()) model.erase(known);
        break;
      case 2:
        policy->demote(s);
        if (known != model.end()) std::rotate(model.begin(), known, known + 1);
        break;
      default:
        policy->touch(s);
        if (known != model.end()) std::rotate(known, known + 1, model.end());
    }
    ASSERT_EQ(order_of(*policy), model);
  }
}

}  // namespace
}  // namespace kvd::policy
