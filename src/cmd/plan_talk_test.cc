// Tests that `plan talk` has the talk's settings: its set-ups' vectors, its example, its SLA figure.
#include "cmd/plan_talk.h"

#include <algorithm>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cmd/plan_talk_runs.h"

namespace kvd::cmd {
namespace {

const TalkSetup& setup(const std::vector<TalkSetup>& setups, const std::string& name) {
  return *std::ranges::find(setups, name, &TalkSetup::name);
}

// Two seeds: what is tested here does not hang on the intervals.
const TalkRuns& few_runs() {
  static const TalkRuns runs = run_talk(talk_setups(), 2, 2, [](std::size_t, std::size_t) {});
  return runs;
}

const TalkSeries& series(const TalkRuns& runs, const std::string& setup, bool plain) {
  for (const TalkSeries& s : runs.series) {
    if (s.setup == setup && s.plain == plain) return s;
  }
  ADD_FAILURE() << setup;
  return runs.series.front();
}

TEST(PlanTalk, ItsSetUpsAreThoseOfTheCheckVectors) {
  const auto setups = talk_setups();
  ASSERT_EQ(setups.size(), 4U);
  const TalkSetup& chat = setup(setups, "llama-70b-chat");
  const model::Prefill llama = model::prefill(chat.replica, chat.workload, chat.store);
  EXPECT_NEAR(llama.acceleration, 18.131, 5e-4);
  EXPECT_NEAR(llama.ttft_vanilla_s, 0.163379, 5e-7);
  const TalkSetup& document = setup(setups, "qwen3-14b");
  const model::Prefill qwen = model::prefill(document.replica, document.workload, document.store);
  EXPECT_NEAR(qwen.acceleration, 9.2483, 5e-5);
  EXPECT_NEAR(qwen.ttft_depot_s, 0.109097, 5e-7);
}

TEST(PlanTalk, TheExampleRisesToTenAtNineTenths) {
  const auto figures = talk_figures(few_runs());
  ASSERT_EQ(figures.size(), 6U);
  const auto& line = figures[0].chart.series[0].points;
  const auto top = std::ranges::max_element(line, {}, [](const auto& point) { return point.second; });
  EXPECT_NEAR(top->first, 0.9, 1e-9);
  EXPECT_NEAR(top->second, 10, 1e-9);
  EXPECT_NEAR(line.back().second, 9, 1e-9);
}

TEST(PlanTalk, TheDepotServesLargerBatchesAtEveryPromptLength) {
  const auto figures = talk_figures(few_runs());
  const auto& vanilla = figures[1].chart.series[0].points;
  const auto& depot = figures[1].chart.series[1].points;
  ASSERT_EQ(vanilla.size(), depot.size());
  for (std::size_t i = 0; i < vanilla.size(); ++i) EXPECT_GE(depot[i].second, vanilla[i].second) << vanilla[i].first;
  EXPECT_GT(vanilla.front().second, vanilla.back().second);  // falls with the prompt
  EXPECT_DOUBLE_EQ(vanilla.back().first, 3500);
}

TEST(PlanTalk, TheSimulationFollowsTheFormWhileMemoryLasts) {
  const auto setups = talk_setups();
  const TalkSetup& chat = setup(setups, "llama-70b-chat");
  const model::Prefill p = model::prefill(chat.replica, chat.workload, chat.store);
  const model::Batching vanilla = model::batching(chat.replica, chat.workload, p.ttft_vanilla_s);
  const model::Batching depot = model::batching(chat.replica, chat.workload, p.ttft_depot_s);
  for (const TalkClients& at : series(few_runs(), "llama-70b-chat", true).points) {
    if (at.clients > 32) break;
    EXPECT_NEAR(at.vanilla.tpot_s.mean / vanilla.tpot_s(at.clients), 1, 0.1) << at.clients;
    EXPECT_NEAR(at.depot.tpot_s.mean / depot.tpot_s(at.clients), 1, 0.1) << at.clients;
    if (at.clients == 32) {
      EXPECT_GT(at.gain.mean, 1.8);
    }
  }
}

TEST(PlanTalk, ConversationsHaveTheTalksMeansAndFindAboutWhatItAssumes) {
  for (const auto& [name, tokens, reuse] :
       {std::tuple{"llama-70b-chat", 2200.0, 0.9}, std::tuple{"qwen3-14b", 9600.0, 0.85}}) {
    const TalkRun& run = series(few_runs(), name, false).points.at(4).depot;  // 16 clients
    EXPECT_NEAR(run.prompt_mean / tokens, 1, 0.05) << name;
    EXPECT_NEAR(run.loaded_share, reuse, 0.06) << name;
    EXPECT_EQ(series(few_runs(), name, false).points.at(4).vanilla.loaded_share, 0);
  }
}

TEST(PlanTalk, TheSimulatedSlaFollowsTheFormWhereMemoryIsAmpleAndMemoryBindsWhereItIsNot) {
  const auto figures = talk_figures(few_runs());
  for (const TalkSla& point : few_runs().sla) {
    // Lines have a point each hundred tokens, from 100.
    const double form = figures[1].chart.series[1].points.at(point.prompt_tokens / 100 - 1).second;
    if (point.memory) {
      EXPECT_LE(point.depot.mean, 1.5 * figures[1].chart.series[2].points.at(point.prompt_tokens / 100 - 1).second + 1);
    } else {
      EXPECT_GT(point.depot.mean, 0.5 * form) << point.prompt_tokens;
      EXPECT_LT(point.depot.mean, 2 * form) << point.prompt_tokens;
    }
  }
}

// At 100 tokens the simulation lets half as many in as the form: the depot has whole blocks, 80 of the 90 tokens. Of
// 160 tokens it has all 144.
TEST(PlanTalk, WholeBlocksAreWhatShortPromptsLose) {
  const auto figures = talk_figures(few_runs());
  const auto& form = figures[1].chart.series[1].points;
  const auto setups = talk_setups();
  const double form_at_160 = form.at(1).second * form.at(1).first / 160;  // prompts are what the time goes to
  EXPECT_NEAR(clients_within(setups.front(), 160, true, false, 1) / form_at_160, 1, 0.1);
  EXPECT_LT(clients_within(setups.front(), 100, true, false, 1) / form.front().second, 0.6);
}

TEST(PlanTalk, TheNumberOfThreadsChangesNothing) {
  const std::vector<TalkSetup> one{setup(talk_setups(), "llama-70b-tp1")};
  const auto told = [](std::size_t, std::size_t) {};
  const TalkRuns alone = run_talk(one, 1, 1, told);
  const TalkRuns shared = run_talk(one, 1, 3, told);
  EXPECT_EQ(talk_json({}, alone), talk_json({}, shared));
}

TEST(PlanTalk, PointsComeAsJson) {
  const auto json = nlohmann::json::parse(talk_json(talk_figures(few_runs()), few_runs()));
  EXPECT_TRUE(json.contains("efficiency-llama-70b-chat"));
  EXPECT_EQ(json["example"].size(), 3U);
  EXPECT_EQ(json["seeds"], 2);
  EXPECT_EQ(json["runs"]["qwen3-14b"]["talk"].size(), kTalkClients.size());
  EXPECT_GT(json["runs"]["qwen3-14b"]["plain"][3]["depot"]["ttft_s"]["half"].get<double>(), 0);
  EXPECT_EQ(json["sla"].size(), 2 * kTalkPrompts.size());
  EXPECT_THAT(talk_table(few_runs()), testing::HasSubstr("llama-70b-tp1"));
  EXPECT_THAT(talk_table(few_runs()), testing::HasSubstr("\nchecks: tokens and blocks of every run are conserved"));
}

}  // namespace
}  // namespace kvd::cmd
