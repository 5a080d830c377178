// Engines of the catalogue: passes against the closed forms of the same replica, room for KV, and what does not fit.
#include "model/catalogue_engine.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::model {
namespace {

using testing::HasSubstr;

Question on(const char* model, const char* device, std::uint32_t gpus, double bytes) {
  Question q;
  q.model = Catalogue::built_in().model(model);
  q.device = Catalogue::built_in().device(device);
  q.gpus = gpus;
  q.precision = bytes < 2 ? "fp8" : "bf16";
  q.weight_bytes_per_param = bytes;
  q.kv_bytes_per_element = bytes;
  return q;
}

CatalogueEngine good(const Question& q) {
  auto made = catalogue_engine(q, 16);
  EXPECT_TRUE(made.has_value()) << made.error();
  return made.value_or(CatalogueEngine{});
}

double seconds(Picoseconds time) { return static_cast<double>(time) / kPicosecondsPerSecond; }

TEST(CatalogueEngine, TakesAsLongAsTheClosedFormsSay) {
  const Question q = on("llama-3-70b", "h100", 2, 1);
  const CatalogueEngine engine = good(q);
  const Replica replica = replica_of(q);
  EXPECT_NEAR(seconds(engine.pass.base), replica.tpot_one_s, 1e-9) << "a dense model's weights are all read";
  constexpr std::int64_t kPrompt = 2200;
  const Workload workload{kPrompt, 170, 0};
  const double alone = prefill(replica, workload, {1e12, 1e12, 0, true}).ttft_vanilla_s;
  EXPECT_NEAR(seconds(engine.pass.pass(kPrompt, kPrompt * (kPrompt + 1) / 2, 0, 0) - engine.pass.base) / alone, 1,
              1e-3);
  EXPECT_NEAR(seconds(engine.pass.context * kPrompt) / batching(replica, workload, alone, false).context_s, 1, 1e-3);
  EXPECT_EQ(engine.pass.seq, 0);
}

TEST(CatalogueEngine, ReadsWindowsOnceTheyAreFull) {
  const Question q = on("gemma-3-27b", "h100", 2, 2);
  const CatalogueEngine engine = good(q);
  const Replica replica = replica_of(q);
  double window = 0;
  double at_window = 0;
  double everywhere = 0;
  for (const AttentionPart& part : replica.attention) {
    (part.window_tokens > 0 ? at_window : everywhere) += part.pair_flops;
    window = std::max(window, part.window_tokens);
  }
  ASSERT_GT(window, 0);
  ASSERT_GT(everywhere, 0);
  for (const std::int64_t tokens : {2000, 20'000, 100'000}) {
    const double held = q.model->kv_bytes(static_cast<double>(tokens), 2);
    EXPECT_NEAR(seconds(engine.pass.seq + engine.pass.context * tokens) * replica.memory_bytes_per_s / held, 1, 1e-3);
    const double flops = replica.token_flops + at_window * window + everywhere * static_cast<double>(tokens);
    EXPECT_NEAR(seconds(engine.pass.token + engine.pass.pair * tokens) * replica.flops_per_s / flops, 1, 1e-3);
  }
}

TEST(CatalogueEngine, HasRoomForTheKvThatMemoryLeaves) {
  const CatalogueEngine engine = good(on("qwen3-32b", "h100", 2, 2));
  EXPECT_EQ(engine.kv_token_bytes, 262'144);
  EXPECT_NEAR(static_cast<double>(engine.kv_tokens), 307'328, 0.04 * 307'328) << "what vLLM had in llm-d's run";
  EXPECT_EQ(engine.layers, 64U);
  EXPECT_EQ(engine.context_tokens, 40'960U);
}

TEST(CatalogueEngine, CountsTheCopiesOfTensorParallelism) {
  const Question q = on("deepseek-v3", "h200", 8, 1);
  const CatalogueEngine engine = good(q);
  EXPECT_EQ(engine.kv_token_memory, 8 * engine.kv_token_bytes) << "latent attention keeps one on every GPU";
  EXPECT_GT(seconds(engine.pass.base), q.model->params() / replica_of(q).memory_bytes_per_s) << "all experts are read";
}

TEST(CatalogueEngine, SaysWithNumbersWhatDoesNotFit) {
  const auto made = catalogue_engine(on("llama-3-70b", "h100", 1, 2), 16);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error(), HasSubstr("llama-3-70b does not fit 1 x h100: weights 70.6e9 parameters x 2 B = 141."));
  EXPECT_THAT(made.error(), HasSubstr("80.0 GB x 0.9 = 72.0 GB. Use at least 2 GPUs"));
}

TEST(CatalogueEngine, KnowsTheBytesOfItsPrecisions) {
  for (const std::string_view name : precision_names()) EXPECT_GT(precision_bytes(name), 0) << name;
  EXPECT_EQ(precision_bytes("fp8"), 1);
  EXPECT_EQ(precision_bytes("bf17"), 0);
}

}  // namespace
}  // namespace kvd::model
