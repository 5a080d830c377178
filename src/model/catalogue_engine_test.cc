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

CatalogueEngine built(const Question& q) {
  auto made = catalogue_engine(q, 16);
  EXPECT_TRUE(made.has_value()) << made.error();
  return made.value_or(CatalogueEngine{});
}

double seconds(Picoseconds time) { return static_cast<double>(time) / kPicosecondsPerSecond; }

TEST(CatalogueEngine, TakesAsLongAsTheClosedFormsSay) {
  const Question q = on("llama-3-70b", "h100", 2, 1);
  const CatalogueEngine engine = built(q);
  const Replica replica = replica_of(q);
  EXPECT_NEAR(seconds(engine.pass.base + engine.pass.seq), replica.tpot_one_s, 1e-9)
      << "a dense model's weights are all read";
  constexpr std::int64_t kPrompt = 2200;
  const Workload workload{kPrompt, 170, 0};
  const double alone = prefill(replica, workload, {1e12, 1e12, 0, true}).ttft_vanilla_s;
  EXPECT_NEAR(seconds(engine.pass.pass(kPrompt, kPrompt * (kPrompt + 1) / 2, 0, 0) - engine.pass.base) / alone, 1,
              1e-3);
  EXPECT_NEAR(seconds(engine.pass.context * kPrompt) / batching(replica, workload, alone, false).context_s, 1, 1e-3);
  EXPECT_NEAR(seconds(engine.pass.seq), replica.reduce_token_s + replica.seq_s, 1e-12);
}

// Two messages of 8,192 values of 2 bytes in each of 80 layers; between four GPUs a ring sends 1.5 times as much of it.
TEST(CatalogueEngine, SumsUpBetweenTensorParallelDevices) {
  const Link& nvlink = *Catalogue::built_in().link("nvlink-h100");
  const double token_s = 2 * 80 * 8192 * 2.0 / nvlink.bytes_per_s.back().second;
  for (const auto& [gpus, share] : {std::pair{1U, 0.0}, {2U, 1.0}, {4U, 1.5}, {8U, 1.75}}) {
    Question q = on("llama-3-70b", "h100", gpus, 1);
    const PassReduces reduces = pass_reduces(q);
    EXPECT_NEAR(reduces.token_s, share * token_s, 1e-12) << gpus;
    EXPECT_DOUBLE_EQ(reduces.pass_s, gpus == 1 ? 0 : 160 * nvlink.latency_s) << gpus;
    if (gpus == 1) continue;  // does not fit
    const LinearPass with = built(q).pass;
    Device alone = *q.device;
    alone.reduce_latency_s = alone.reduce_byte_s = 0;
    q.device = &alone;
    const LinearPass without = built(q).pass;
    EXPECT_NEAR(seconds(with.base - without.base), reduces.pass_s, 1e-11) << gpus;
    EXPECT_NEAR(seconds(with.token - without.token), reduces.token_s, 1e-11) << gpus;
    EXPECT_NEAR(seconds(with.seq - without.seq), reduces.token_s, 1e-11) << gpus;
    EXPECT_EQ(with.pair, without.pair);
    EXPECT_EQ(with.context, without.context);
  }
}

TEST(CatalogueEngine, ThePresetIsMadeOfTheCatalogue) {
  const CatalogueEngine preset = qwen3_32b_h100x2();
  const LinearPass named = built(on("qwen3-32b", "h100", 2, 2)).pass;
  EXPECT_EQ(preset.pass.pass(1000, 500'500, 10, 5000), named.pass(1000, 500'500, 10, 5000));
  EXPECT_EQ(preset.kv_token_bytes, 262'144);
}

TEST(CatalogueEngine, ReadsWindowsOnceTheyAreFull) {
  const Question q = on("gemma-3-27b", "h100", 2, 2);
  const CatalogueEngine engine = built(q);
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
    const double read =
        seconds(engine.pass.seq + engine.pass.context * tokens) - replica.reduce_token_s - replica.seq_s;
    EXPECT_NEAR(read * replica.memory_bytes_per_s / held, 1, 1e-3);
    const double flops = replica.token_flops + at_window * window + everywhere * static_cast<double>(tokens);
    const double computed = seconds(engine.pass.token + engine.pass.pair * tokens) - replica.reduce_token_s;
    EXPECT_NEAR(computed * replica.flops_per_s / flops, 1, 1e-3);
  }
}

TEST(CatalogueEngine, HasRoomForTheKvThatMemoryLeaves) {
  const CatalogueEngine engine = built(on("qwen3-32b", "h100", 2, 2));
  EXPECT_EQ(engine.kv_token_bytes, 262'144);
  EXPECT_NEAR(static_cast<double>(engine.kv_tokens), 307'328, 0.04 * 307'328) << "what vLLM had in llm-d's run";
  EXPECT_EQ(engine.layers, 64U);
  EXPECT_EQ(engine.context_tokens, 40'960U);
}

TEST(CatalogueEngine, CountsTheCopiesOfTensorParallelism) {
  const Question q = on("deepseek-v3", "h200", 8, 1);
  const CatalogueEngine engine = built(q);
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
