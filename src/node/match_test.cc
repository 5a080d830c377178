#include "node/match.h"

#include <algorithm>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvd::node {
namespace {

// Groups written as rows: 'p' = pool, 'f' = flash, '.' = missing.
MatchResult match(const std::vector<MatchGroup>& groups, const std::vector<std::string>& rows) {
  PrefixSearch search(groups, static_cast<std::uint32_t>(rows[0].size()));
  std::vector<std::string> asked = rows;
  while (!search.done()) {
    const PrefixSearch::Place at = search.next();
    const char c = std::exchange(asked[at.group][at.block], '!');
    EXPECT_NE(c, '!') << "each place at most once";
    search.found(c == 'p' ? Tier::kPool : c == 'f' ? Tier::kFlash : Tier::kNone);
  }
  return search.result();
}

constexpr MatchGroup kAll{HitRule::kAll, 0};
constexpr MatchGroup kTrailing2{HitRule::kTrailing, 2};
constexpr MatchGroup kLast{HitRule::kLast, 0};

TEST(Match, FullAttentionNeedsEveryBlock) {
  EXPECT_EQ(match({kAll}, {"ppf.p"}).prefix_blocks, 3U);
  EXPECT_EQ(match({kAll}, {".pppp"}).prefix_blocks, 0U);
  EXPECT_EQ(match({kAll}, {"ppppp"}).prefix_blocks, 5U);
}

TEST(Match, TiersAreTheSlowestOfWhatThePrefixNeeds) {
  const MatchResult result = match({kAll, kTrailing2}, {"ppppp", "f.fp."});
  EXPECT_EQ(result.prefix_blocks, 4U);
  const std::vector<Tier> expected{Tier::kPool, Tier::kPool, Tier::kFlash, Tier::kPool, Tier::kNone};
  EXPECT_EQ(result.tiers, expected);
}

TEST(Match, ASlidingWindowNeedsItsWindowAlone) {
  EXPECT_EQ(match({kTrailing2}, {"...pp"}).prefix_blocks, 5U);
  EXPECT_EQ(match({kTrailing2}, {".pp.p"}).prefix_blocks, 3U);
  EXPECT_EQ(match({kTrailing2}, {"p...."}).prefix_blocks, 1U);  // the whole prefix is inside the window
  EXPECT_EQ(match({kTrailing2}, {".p.p."}).prefix_blocks, 0U);
}

TEST(Match, AStateNeedsTheLastBlock) {
  EXPECT_EQ(match({kLast}, {"..p.."}).prefix_blocks, 3U);
  EXPECT_EQ(match({kLast}, {"....."}).prefix_blocks, 0U);
}

TEST(Match, AllGroupsMustAgree) {
  EXPECT_EQ(match({kAll, kLast}, {"pppp.", ".p..p"}).prefix_blocks, 2U);
  EXPECT_EQ(match({kAll, kTrailing2, kLast}, {"ppppp", ".pppp", "..p.."}).prefix_blocks, 3U);
}

// Against the definition, tried for every prefix.
TEST(Match, AgreesWithTheDefinition) {
  Random random(11);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t blocks = 1 + random.below(12);
    std::vector<MatchGroup> groups(1 + random.below(3));
    std::vector<std::string> rows;
    for (MatchGroup& group : groups) {
      group.rule = static_cast<HitRule>(random.below(3));
      group.hit_blocks = static_cast<std::uint32_t>(1 + random.below(4));
      std::string& row = rows.emplace_back();
      for (std::size_t b = 0; b < blocks; ++b) row += random.chance(1, 4) ? '.' : random.chance(1, 2) ? 'p' : 'f';
    }
    std::uint32_t best = 0;
    for (std::uint32_t p = 1; p <= blocks; ++p) {
      bool usable = true;
      for (std::size_t g = 0; g < groups.size(); ++g) {
        const std::uint32_t first = groups[g].rule == HitRule::kAll    ? 0
                                    : groups[g].rule == HitRule::kLast ? p - 1
                                                                       : p - std::min(p, groups[g].hit_blocks);
        usable = usable && rows[g].substr(first, p - first).find('.') == std::string::npos;
      }
      if (usable) best = p;
    }
    EXPECT_EQ(match(groups, rows).prefix_blocks, best) << round;
  }
}

}  // namespace
}  // namespace kvd::node
