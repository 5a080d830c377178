// Tests of the talk's closed loop: what one client sees is exact, more clients follow the closed form, memory binds.
#include "sim/talk_loop.h"

#include <gtest/gtest.h>

namespace kvd::sim {
namespace {

constexpr TalkEngine kEngine{.step_s = 0.020, .token_s = 70e-6, .context_token_s = 2e-8, .blocks = 1'000'000};
constexpr TalkTraffic kTraffic{
    .prompt_min = 2000, .prompt_max = 2000, .output_mean = 100, .clients = 1, .requests = 400};

TEST(TalkLoop, OneClientPaysForItsPromptAndItsSteps) {
  const TalkPoint point = talk_loop(kEngine, kTraffic, 1);
  EXPECT_NEAR(point.ttft_s, 0.020 + 2000 * 70e-6, 1e-9);
  EXPECT_NEAR(point.tpot_s, 0.020 + 2100 * 2e-8, 1e-5);  // prompt and, on average over tokens, some 100 of the answer
  EXPECT_EQ(point.preemptions, 0U);
}

TEST(TalkLoop, AStoredPrefixCostsItsLoadInsteadOfItsCompute) {
  TalkEngine engine = kEngine;
  engine.reuse = 0.8;
  engine.read_token_s = 4e-6;
  EXPECT_NEAR(talk_loop(engine, kTraffic, 1).ttft_s, 1600 * 4e-6 + 0.020 + 400 * 70e-6, 1e-9);
}

TEST(TalkLoop, LayerByLayerALoadCostsOneLayerUnlessItIsTheLonger) {
  TalkEngine engine = kEngine;
  engine.reuse = 0.8;
  engine.layers = 40;
  engine.read_token_s = 4e-6;
  const double compute = 0.020 + 400 * 70e-6;
  EXPECT_NEAR(talk_loop(engine, kTraffic, 1).ttft_s, compute + 1600 * 4e-6 / 40, 1e-9);
  engine.read_token_s = 100e-6;
  EXPECT_NEAR(talk_loop(engine, kTraffic, 1).ttft_s, 1600 * 100e-6 + compute / 40, 1e-9);
}

TEST(TalkLoop, ATurnFindsThePromptOfTheTurnBefore) {
  TalkEngine engine = kEngine;
  engine.reuse = 0.8;  // there is a depot; how much it has follows from the conversation
  engine.layers = 40;
  const TalkTraffic traffic{.prompt_min = 1000,
                            .prompt_max = 1000,
                            .clients = 1,
                            .requests = 400,
                            .output_min = 50,
                            .output_max = 50,
                            .turns_min = 3,
                            .turns_max = 3,
                            .user_tokens = 100};
  const TalkPoint point = talk_loop(engine, traffic, 1);
  EXPECT_NEAR(point.prompt_mean, (1000 + 1150 + 1300) / 3.0, 1e-9);
  EXPECT_NEAR(point.loaded_share, (992 + 1136) / 3450.0, 1e-9);  // whole blocks of 16
  const double first = 3 * 0.020 + (3450 - 992 - 1136) * 70e-6;
  EXPECT_NEAR(point.ttft_s, first / 3, 1e-9);
  engine.reuse = 0;
  EXPECT_NEAR(talk_loop(engine, traffic, 1).ttft_s, (3 * 0.020 + 3450 * 70e-6) / 3, 1e-9);
}

TEST(TalkLoop, ManyClientsFollowTheClosedForm) {
  TalkTraffic traffic = kTraffic;
  traffic.clients = 32;
  traffic.requests = 3200;
  const TalkPoint point = talk_loop(kEngine, traffic, 1);
  const double form = 0.020 + 31 * (2000 * 70e-6 / 100 + 2100 * 2e-8);
  EXPECT_NEAR(point.tpot_s / form, 1, 0.05);
}

// What closed_forms_test.cc switches off to have the closed form's own assumptions.
TEST(TalkLoop, AConstantContextIsThePrompt) {
  TalkEngine engine = kEngine;
  engine.constant_context = true;
  EXPECT_NEAR(talk_loop(engine, kTraffic, 1).tpot_s, 0.020 + 2000 * 2e-8, 1e-12);
}

TEST(TalkLoop, ChunksOfAPromptPayForAStepEach) {
  TalkEngine engine = kEngine;
  engine.chunk_tokens = 500;
  EXPECT_NEAR(talk_loop(engine, kTraffic, 1).ttft_s, 4 * 0.020 + 2000 * 70e-6, 1e-9);
}

TEST(TalkLoop, ClientsAreBusyWhileItCounts) {
  TalkTraffic traffic = kTraffic;
  traffic.clients = 64;
  traffic.requests = 20 * traffic.clients;
  const TalkPoint point = talk_loop(kEngine, traffic, 1);
  // Little's law for clients that always have a request: were the end of the run counted, with ever fewer of them, the
  // left side would be a fifth lower.
  const double latency_s = point.ttft_s + (kTraffic.output_mean - 1) * point.tpot_s;
  EXPECT_NEAR(point.requests_per_s * latency_s / traffic.clients, 1, 0.1);
  EXPECT_LT(point.little_error, 1e-9);
}

TEST(TalkLoop, TheSameSeedGivesTheSameNumbers) {
  TalkTraffic traffic = kTraffic;
  traffic.prompt_min = 100;
  traffic.clients = 8;
  EXPECT_EQ(talk_loop(kEngine, traffic, 3).tpot_s, talk_loop(kEngine, traffic, 3).tpot_s);
  EXPECT_NE(talk_loop(kEngine, traffic, 3).tpot_s, talk_loop(kEngine, traffic, 4).tpot_s);
}

TEST(TalkLoop, ClientsBeyondMemoryWait) {
  TalkEngine engine = kEngine;
  engine.blocks = 8 * 2200 / kTalkBlockTokens;
  TalkTraffic traffic = kTraffic;
  traffic.clients = 32;
  const TalkPoint tight = talk_loop(engine, traffic, 1);
  const TalkPoint wide = talk_loop(kEngine, traffic, 1);
  EXPECT_GT(tight.ttft_s, 2 * wide.ttft_s);
  EXPECT_LT(tight.requests_per_s, wide.requests_per_s);
}

}  // namespace
}  // namespace kvd::sim
