// Tests of models read from config.json: parameters against the published numbers, KV bytes and FLOP by hand.
#include "model/transformer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/catalogue.h"
#include "model/hf_config.h"

namespace kvd::model {
namespace {

using testing::HasSubstr;

const Transformer& known(const char* name) {
  const Transformer* model = Catalogue::built_in().model(name);
  EXPECT_NE(model, nullptr) << name;
  static const Transformer nothing;
  return model == nullptr ? nothing : *model;
}

std::string complaint(const std::string& json) {
  const auto read = read_hf_config(json, "m", "config.json");
  return read ? "" : read.error().str();
}

TEST(Transformer, CountsAsManyParametersAsArePublished) {
  const std::vector<std::pair<const char*, double>> published{
      {"llama-3-8b", 8.03e9},      {"llama-3.1-405b", 405.9e9}, {"yarn-llama-2-7b", 6.74e9},
      {"opt-13b", 12.85e9},        {"qwen3-14b", 14.77e9},      {"qwen3-32b", 32.76e9},
      {"mixtral-8x7b", 46.7e9},    {"mistral-7b-v0.1", 7.24e9}, {"qwen3-30b-a3b", 30.5e9},
      {"deepseek-v3", 671e9},      {"gemma-3-27b", 27.0e9},     {"gpt-oss-120b", 116.8e9},
      {"falcon-7b", 6.92e9},       {"smollm2-135m", 134.5e6},   {"jamba-1.5-mini", 51.6e9},
      {"qwen3-next-80b-a3b", 80e9}};
  for (const auto& [name, params] : published) EXPECT_NEAR(known(name).params() / params, 1, 0.02) << name;
  EXPECT_DOUBLE_EQ(known("llama-3-70b").params(), 70.6e9);
}

TEST(Transformer, ATokenUsesOnlyItsExperts) {
  EXPECT_NEAR(known("mixtral-8x7b").params_active() / 12.9e9, 1, 0.01);
  EXPECT_NEAR(known("qwen3-30b-a3b").params_active() / 3.34e9, 1, 0.03);
  EXPECT_NEAR(known("deepseek-v3").params_active() / 37.5e9, 1, 0.03);
  EXPECT_NEAR(known("jamba-1.5-mini").params_active() / 12e9, 1, 0.03);
  EXPECT_DOUBLE_EQ(known("qwen3-32b").params_active(), known("qwen3-32b").params());
}

TEST(Transformer, KvOfATokenByKindOfAttention) {
  EXPECT_DOUBLE_EQ(known("yarn-llama-2-7b").kv_token_bytes(2), 2.0 * 32 * 32 * 128 * 2);  // MHA: 8 MiB for 16 tokens
  EXPECT_DOUBLE_EQ(known("yarn-llama-2-7b").kv_block_bytes(16, 2), 8.0 * 1048576);
  EXPECT_DOUBLE_EQ(known("llama-3-70b").kv_token_bytes(1), 163'840);  // GQA in FP8
  EXPECT_DOUBLE_EQ(known("qwen3-14b").kv_token_bytes(2), 163'840);
  EXPECT_DOUBLE_EQ(known("qwen3-32b").kv_token_bytes(2), 262'144);
  EXPECT_DOUBLE_EQ(known("falcon-7b").kv_token_bytes(2), 2.0 * 32 * 64 * 2);  // MQA: one head
  EXPECT_DOUBLE_EQ(known("deepseek-v3").kv_token_bytes(2), 61.0 * 576 * 2);   // MLA
  EXPECT_TRUE(known("deepseek-v3").kv_replicated());
  EXPECT_FALSE(known("qwen3-14b").kv_replicated());
  EXPECT_DOUBLE_EQ(known("smollm2-135m").kv_token_bytes(2), 23'040);
}

TEST(Transformer, WindowsBoundKvAndAttention) {
  const Transformer& gemma = known("gemma-3-27b");  // 10 of 62 layers attend to everything
  const double layer = 2.0 * 16 * 128 * 2;
  EXPECT_DOUBLE_EQ(gemma.kv_bytes(500, 2), 62 * 500 * layer);
  EXPECT_DOUBLE_EQ(gemma.kv_bytes(100'000, 2), (10 * 100'000 + 52 * 1024.0) * layer);
  const auto parts = gemma.attention();
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_DOUBLE_EQ(parts[0].window_tokens, 1024);
  EXPECT_DOUBLE_EQ(parts[0].pair_flops, 52 * 4.0 * 32 * 128);
  EXPECT_DOUBLE_EQ(parts[1].window_tokens, 0);
}

TEST(Transformer, RoutedExpertsAreThoseThatATokenIsSentToSomeOf) {
  const auto mixtral = known("mixtral-8x7b").experts(2);
  ASSERT_EQ(mixtral.size(), 1U);
  EXPECT_DOUBLE_EQ(mixtral[0].share, 0.25);
  EXPECT_NEAR(mixtral[0].bytes, 2 * 32.0 * 8 * 3 * 4096 * 14336, 1);
  const auto deepseek = known("deepseek-v3").experts(1);  // its shared expert and its dense layers are not routed
  ASSERT_EQ(deepseek.size(), 1U);
  EXPECT_NEAR(deepseek[0].bytes, 58.0 * 256 * 3 * 7168 * 2048, 1e3);
  EXPECT_TRUE(known("llama-3-70b").experts(1).empty());
}

TEST(Transformer, HybridsKeepKvInSomeLayersOnly) {
  const Transformer& jamba = known("jamba-1.5-mini");
  EXPECT_DOUBLE_EQ(jamba.kv_token_bytes(2), 4.0 * 2 * 8 * 128 * 2);
  const double state = 28.0 * 8192 * (16 + 3) * 2;
  EXPECT_DOUBLE_EQ(jamba.kv_bytes(1000, 2), 1000 * jamba.kv_token_bytes(2) + state);
  EXPECT_DOUBLE_EQ(known("qwen3-next-80b-a3b").kv_token_bytes(2), 12.0 * 2 * 2 * 256 * 2);
}

TEST(Transformer, FlopsOfAKindAddUpToThoseOfTheModel) {
  for (const std::string& name : Catalogue::built_in().model_names()) {
    const Transformer& model = known(name.c_str());
    double token = 0;
    double pair = 0;
    for (const FlopsRow& row : flops_by_kind(model)) {
      token += row.token_flops;
      pair += row.pair_flops;
    }
    double parts = 0;
    for (const AttentionPart& part : model.attention()) parts += part.pair_flops;
    EXPECT_NEAR(token / model.token_flops(), 1, 0.01) << name;
    EXPECT_NEAR(pair, parts, 1) << name;
  }
  EXPECT_DOUBLE_EQ(known("llama-3-70b").attention()[0].pair_flops, 4.0 * 80 * 8192);
}

TEST(HfConfig, ReadsLayerTypesAndNestedTextModels) {
  const auto read = read_hf_config(R"({"vision_config": {}, "text_config": {"model_type": "x", "hidden_size": 64,
    "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 10, "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "linear_attention"]}})",
                                   "m", "config.json");
  ASSERT_TRUE(read.has_value()) << read.error().str();
  ASSERT_EQ(read->groups.size(), 3U);
  EXPECT_EQ(read->groups[0].mixer, Mixer::kWindow);
  EXPECT_EQ(read->groups[0].layers, 2U);
  EXPECT_EQ(read->groups[1].mixer, Mixer::kFull);
  EXPECT_EQ(read->groups[2].mixer, Mixer::kRecurrent);
}

TEST(HfConfig, AQwenConfigWithAnUnusedWindowHasNone) {
  const std::string base = R"({"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 9,
    "num_attention_heads": 4, "sliding_window": 8, "max_window_layers": 3, "use_sliding_window": )";
  EXPECT_EQ(read_hf_config(base + "false}", "m", "f")->groups[0].mixer, Mixer::kFull);
  const auto used = read_hf_config(base + "true}", "m", "f");
  ASSERT_EQ(used->groups.size(), 2U);
  EXPECT_EQ(used->groups[1].layers, 1U);
}

TEST(HfConfig, SaysWhatIsMissing) {
  EXPECT_THAT(complaint("{\n\"hidden_size\": 64,\n]"), HasSubstr("config.json:3: not JSON here"));
  EXPECT_THAT(complaint("{\"hidden_size\": 1e999}"), HasSubstr("a number larger than"));
  EXPECT_THAT(complaint("[1]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(complaint("{}"), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(complaint(R"({"num_hidden_layers": 2})"), HasSubstr("hidden_size"));
  EXPECT_THAT(complaint(R"({"num_hidden_layers": 2, "hidden_size": 64})"), HasSubstr("num_attention_heads"));
  EXPECT_THAT(complaint(R"({"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
                            "num_key_value_heads": 5})"),
              HasSubstr("5 KV heads for 4 heads"));
  EXPECT_THAT(complaint(R"({"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
                            "num_experts": 8, "num_experts_per_tok": 9})"),
              HasSubstr("8 experts of which a token uses 9"));
  EXPECT_THAT(complaint(R"({"num_hidden_layers": 1e8, "hidden_size": 64, "num_attention_heads": 4})"),
              HasSubstr("at most 10000"));
  EXPECT_THAT(complaint(R"({"num_hidden_layers": -2, "hidden_size": 64, "num_attention_heads": 4})"),
              HasSubstr("no layers"));
}

}  // namespace
}  // namespace kvd::model
