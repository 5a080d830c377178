// Tests that `plan talk` has the talk's settings: its set-ups' vectors, its example, its SLA figure.
#include "cmd/plan_talk.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvd::cmd {
namespace {

const TalkSetup& setup(const std::vector<TalkSetup>& setups, const std::string& name) {
  return *std::ranges::find(setups, name, &TalkSetup::name);
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
  const auto figures = talk_figures();
  ASSERT_EQ(figures.size(), 5U);
  const auto& line = figures[0].chart.series[0].points;
  const auto top = std::ranges::max_element(line, {}, [](const auto& point) { return point.second; });
  EXPECT_NEAR(top->first, 0.9, 1e-9);
  EXPECT_NEAR(top->second, 10, 1e-9);
  EXPECT_NEAR(line.back().second, 9, 1e-9);
}

TEST(PlanTalk, TheDepotServesLargerBatchesAtEveryPromptLength) {
  const auto figures = talk_figures();
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
  for (const std::uint32_t clients : {1U, 8U, 32U}) {
    EXPECT_NEAR(simulate(chat, false, clients).tpot_s / vanilla.tpot_s(clients), 1, 0.1) << clients;
    EXPECT_NEAR(simulate(chat, true, clients).tpot_s / depot.tpot_s(clients), 1, 0.1) << clients;
  }
  EXPECT_GT(simulate(chat, true, 32).requests_per_s, 1.8 * simulate(chat, false, 32).requests_per_s);
}

TEST(PlanTalk, PointsComeAsJson) {
  const auto json = nlohmann::json::parse(talk_json(talk_figures()));
  EXPECT_TRUE(json.contains("efficiency-llama-70b-chat"));
  EXPECT_EQ(json["example"].size(), 3U);
  EXPECT_THAT(talk_table(), testing::HasSubstr("llama-70b-tp1"));
}

}  // namespace
}  // namespace kvd::cmd
