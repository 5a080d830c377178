// Generators: rates, lengths and what is shared are what was asked for, and the same seed gives the same requests.
#include "sim/generators.h"

#include <cmath>
#include <map>
#include <set>

#include <gtest/gtest.h>

namespace kvd::sim {
namespace {

struct Drawn {
  double time;
  std::vector<sched::UnitId> units;
  std::uint32_t prompt;
  std::uint32_t output;
  bool operator==(const Drawn&) const = default;
};

std::vector<Drawn> draw(ArrivalSource& source) {
  std::vector<Drawn> all;
  Arrival a;
  while (source.next(a)) {
    Drawn d{static_cast<double>(a.time) / model::kPicosecondsPerSecond, {}, a.prompt, a.output};
    for (std::uint32_t i = 0; i < a.units.count; ++i) d.units.push_back(a.units[i]);
    EXPECT_TRUE(all.empty() || all.back().time <= d.time);
    EXPECT_EQ(d.units.size(), (a.prompt + source.unit_tokens() - 1) / source.unit_tokens());
    all.push_back(std::move(d));
  }
  return all;
}

TEST(SharedPrefix, FollowsItsStages) {
  const auto source = shared_prefix_source({.stages = {{10, 100}, {50, 100}}});
  int early = 0;
  int late = 0;
  for (const Drawn& d : draw(*source)) (d.time < 100 ? early : late) += 1;
  EXPECT_NEAR(early, 1000, 120);
  EXPECT_NEAR(late, 5000, 280);
  EXPECT_EQ(source->unit_tokens(), 1200U);
}

TEST(TokenRange, HaveTheMeanOfTheirDistribution) {
  for (const TokenRange& lengths : {TokenRange{100, 100, 0}, TokenRange{1, 4000, 0}, TokenRange{512, 2048, 0.6}}) {
    Random random(1);
    double sum = 0;
    constexpr int kDraws = 200'000;
    for (int i = 0; i < kDraws; ++i) {
      const std::uint32_t n = lengths.draw(random);
      ASSERT_GE(n, lengths.low);
      ASSERT_LE(n, lengths.high);
      sum += n;
    }
    EXPECT_NEAR(sum / kDraws / lengths.mean(), 1, 0.01);
  }
  EXPECT_LT((TokenRange{512, 2048, 0.6}.mean()), (TokenRange{512, 2048, 0}.mean()));
}

// Totals of 512 to 2048 tokens, a third of them prompt: the study's figures 10 and 11.
TEST(Poisson, SplitsATotalAsTheStudyDoes) {
  PoissonOptions options;
  options.total = {512, 2048, 0.6};
  options.prompt_share = 1.0 / 3;
  options.at_once = 20'000;
  const auto source = poisson_source(options);
  double tokens = 0;
  for (const Drawn& d : draw(*source)) {
    ASSERT_GE(d.prompt + d.output, 512U);
    ASSERT_LE(d.prompt + d.output, 2048U);
    ASSERT_NEAR(d.prompt, (d.prompt + d.output) / 3.0, 0.51);
    tokens += d.prompt + d.output;
  }
  EXPECT_NEAR(tokens / options.at_once / options.total.mean(), 1, 0.01);
  options.total = {2, 2};
  options.prompt_share = 1e-6;
  EXPECT_EQ(options.prompt_of(2), 1U);
  options.prompt_share = 1 - 1e-6;
  EXPECT_EQ(options.prompt_of(2), 1U);
}

TEST(Poisson, HasItsRatesAndSharesNothing) {
  const PoissonOptions options{.prompt = {100, 900}, .output = {5, 5}, .stages = {{20, 200}, {5, 200}}, .gap_s = 50};
  const auto source = poisson_source(options);
  const std::vector<Drawn> all = draw(*source);
  int early = 0;
  std::set<sched::UnitId> seen;
  double gaps = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    early += all[i].time < 200;
    EXPECT_TRUE(all[i].time < 200 || all[i].time >= 250) << "the gap between stages is idle";
    for (const sched::UnitId u : all[i].units) EXPECT_TRUE(seen.insert(u).second);
    if (i > 0 && all[i].time < 200) gaps += std::pow(all[i].time - all[i - 1].time, 2);
  }
  EXPECT_NEAR(early, 4000, 5 * std::sqrt(4000));
  EXPECT_NEAR(static_cast<double>(all.size()) - early, 1000, 5 * std::sqrt(1000));
  EXPECT_NEAR(gaps / early, 2.0 / (20 * 20), 0.001) << "mean square of an exponential gap";
  EXPECT_EQ(all, draw(*poisson_source(options)));
}

TEST(Poisson, SendsAllAtOnceWhereAsked) {
  const std::vector<Drawn> all = draw(*poisson_source({.at_once = 7}));
  ASSERT_EQ(all.size(), 7U);
  EXPECT_EQ(all.back().time, 0);
}

TEST(Sessions, RepeatWhatWasSaid) {
  const SessionOptions options{.stages = {{1, 500}},
                               .groups = 3,
                               .system_tokens = 640,
                               .turns = {4, 4},
                               .user = {64, 640},
                               .output = {64, 64},
                               .think_s = 30};
  const std::vector<Drawn> all = draw(*session_source(options));
  EXPECT_NEAR(static_cast<double>(all.size()), 4 * 500, 4 * 5 * std::sqrt(500));
  std::map<sched::UnitId, std::vector<Drawn>> sessions;  // by the first unit behind the system prompt
  std::set<sched::UnitId> systems;
  for (const Drawn& d : all) {
    ASSERT_GT(d.units.size(), 10U);
    systems.insert(d.units[0]);
    sessions[d.units[10]].push_back(d);
  }
  EXPECT_EQ(systems.size(), 3U);
  double pauses = 0;
  for (const auto& [id, turns] : sessions) {
    ASSERT_EQ(turns.size(), 4U);
    for (std::size_t i = 1; i < 4; ++i) {
      EXPECT_GE(turns[i].prompt, turns[i - 1].prompt + 64 + 64);
      EXPECT_TRUE(std::equal(turns[i - 1].units.begin(), turns[i - 1].units.end(), turns[i].units.begin()));
      pauses += turns[i].time - turns[i - 1].time;
    }
  }
  EXPECT_NEAR(pauses / (3.0 * static_cast<double>(sessions.size())), 30, 4);
  EXPECT_EQ(all, draw(*session_source(options)));
}

TEST(Sessions, OfOneTurnHaveNoGaps) {
  SessionOptions options{.stages = {{1, 100}, {1, 100}}, .gap_s = 50, .turns = {1, 1}, .think_s = 2e5};
  EXPECT_EQ(last_arrival_s(options), 250);
  for (const Drawn& d : draw(*session_source(options))) EXPECT_LT(d.time, 250);
  options.turns.high = 2;
  EXPECT_GT(last_arrival_s(options), kArrivalMaxS);
}

TEST(Sessions, EndBeforeTheContextDoes) {
  const SessionOptions options{
      .stages = {{1, 200}}, .turns = {20, 20}, .user = {500, 500}, .output = {100, 100}, .context_tokens = 3000};
  const std::vector<Drawn> all = draw(*session_source(options));
  std::uint32_t longest = 0;
  for (const Drawn& d : all) longest = std::max(longest, d.prompt + d.output);
  EXPECT_EQ(longest, 3000U);  // five turns of 600
}

}  // namespace
}  // namespace kvd::sim
