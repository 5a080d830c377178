// The configuration of simulated fleets: what it means, and what it says about mistakes. And what can be switched off.
#include "cmd/sim_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cmd/sim_ablate.h"

namespace kvd::cmd {
namespace {

using sim::Tier;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kTiersText = R"([fleet]
instances = 4
[engine]
loads = "layerwise"
[dram]
capacity = "256GiB"
bandwidth = "50GB/s"
[flash]
capacity = "7.68TB"
bandwidth = "13GB/s"
write_bandwidth = "6.6GB/s"
write_budget = "89MB/s"
[depot]
bandwidth = "20GB/s"
total_bandwidth = "100GB/s"
[workload]
generator = "poisson"
rate = 2.5
duration_s = 600
prompt_tokens = [500, 4000]
zipf_theta = 0.6
output_tokens = 200
)";

std::string fault(const std::string& text, const std::vector<std::string>& set = {}) {
  const auto config = read_sim_config(text, "fleet.toml", set);
  return config ? "no fault" : config.error().str();
}

TEST(SimConfig, ReadsTiersWithTheirUnits) {
  const auto config = read_sim_config(kTiersText, "fleet.toml", {});
  ASSERT_TRUE(config) << config.error().str();
  const sim::TiersConfig& tiers = config->fleet.tiers;
  EXPECT_TRUE(tiers.layerwise);
  EXPECT_EQ(tiers.layers, 64U);
  EXPECT_EQ(tiers[Tier::kDram].tokens_max, 256ULL * 1024 * 1024 * 1024 / 262144);
  EXPECT_EQ(tiers[Tier::kDram].write_bytes_per_s, 50e9) << "as fast as reading, unless said otherwise";
  EXPECT_EQ(tiers[Tier::kFlash].write_bytes_per_s, 6.6e9);
  EXPECT_EQ(tiers[Tier::kFlash].write_budget_per_s, 89e6);
  EXPECT_EQ(tiers[Tier::kDepot].total_read_per_s, 100e9);
  EXPECT_EQ(tiers[Tier::kDepot].tokens_max, 0U);
  EXPECT_EQ(config->source, "poisson");
  EXPECT_EQ(config->poisson.prompt.low, 500U);
  EXPECT_EQ(config->poisson.prompt.theta, 0.6);
  ASSERT_EQ(config->poisson.stages.size(), 1U);
  EXPECT_EQ(config->poisson.stages[0].rate, 2.5);
}

TEST(SimConfig, MultipliesRatesBySpeed) {
  const auto config = read_sim_config(kTiersText, "fleet.toml", {"workload.speed=3"});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->poisson.stages[0].rate, 7.5);
}

TEST(SimConfig, TakesLengthsAsSharesOfATotal) {
  const std::string text = "[workload]\ngenerator = \"poisson\"\nat_once = 32\ntotal_tokens = [128, 8192]\n";
  const auto config = read_sim_config(text, "fleet.toml", {"workload.prompt_share=0.25", "workload.zipf_theta=0.6"});
  ASSERT_TRUE(config) << config.error().str();
  EXPECT_EQ(config->poisson.total.theta, 0.6);
  EXPECT_EQ(config->poisson.prompt_max(), 2048U);
  EXPECT_THAT(fault(text), HasSubstr("total_tokens and prompt_share are expected together"));
  EXPECT_THAT(fault(text, {"workload.prompt_share=1"}), HasSubstr("prompt_share: a number from"));
  EXPECT_THAT(fault(text, {"workload.prompt_share=0.5", "workload.output_tokens=9"}),
              HasSubstr("prompt_share is there"));
  EXPECT_THAT(fault(text, {"workload.prompt_share=0.5", "workload.total_tokens=1"}),
              HasSubstr("a prompt and an answer"));
  EXPECT_THAT(fault(text, {"workload.prompt_share=0.5", "engine.context_tokens=8191"}), HasSubstr("8192 tokens"));
}

TEST(SimConfig, NamesFileAndLineAndWhatIsExpected) {
  const std::string text = kTiersText;
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return changed.replace(at, from.size(), to);
  };
  EXPECT_THAT(fault(with("\"256GiB\"", "\"256\"")), StartsWith("fleet.toml:6: dram.capacity: bytes with a unit"));
  EXPECT_THAT(fault(with("\"256GiB\"", "\"2MiB\"")), HasSubstr("less than one block"));
  EXPECT_THAT(fault(with("\"50GB/s\"", "\"50GB\"")), StartsWith("fleet.toml:7: dram.bandwidth: bytes a second"));
  EXPECT_THAT(fault(with("write_budget", "write_budgets")), HasSubstr("near: flash.write_budget"));
  EXPECT_THAT(fault(with("bandwidth = \"50GB/s\"\n", "")), HasSubstr("dram.capacity: bandwidth is expected"));
  EXPECT_THAT(fault(with("\"layerwise\"", "\"layers\"")), StartsWith("fleet.toml:4: engine.loads"));
  EXPECT_THAT(fault(with("[500, 4000]", "[4000, 500]")), HasSubstr("[low, high]"));
  EXPECT_THAT(fault(with("[500, 4000]", "[500, 400000]")), HasSubstr("longer than engine.context_tokens = 131072"));
  EXPECT_THAT(fault(with("duration_s = 600\n", "")), HasSubstr("duration_s is expected"));
  EXPECT_THAT(fault(with("rate = 2.5\nduration_s = 600\n", "")), HasSubstr("stages"));
  EXPECT_THAT(fault(with("rate = 2.5", "turns = 3\nrate = 2.5")), HasSubstr("workload.turns: is not a key of poisson"));
  EXPECT_THAT(fault(with("\"poisson\"", "\"poison\"")), HasSubstr("shared-prefix, poisson, multi-turn"));
  EXPECT_THAT(fault(text, {"depot.total_bandwith=1GB/s"}), HasSubstr("depot.total_bandwidth"));
  EXPECT_THAT(fault(text, {"flash.total_bandwidth=1GB/s"}), HasSubstr("no such key"));
}

// Picoseconds of 64 bits end after 106 days.
TEST(SimConfig, GeneratesNoArrivalBehindTheClock) {
  const std::string head = "[workload]\ngenerator = \"multi-turn\"\n";
  EXPECT_EQ(fault(head + "rate = 1e-3\nduration_s = 8e6\n"), "no fault");
  EXPECT_THAT(fault(head + "rate = 1e-3\nduration_s = 1e7\n"),
              AllOf(StartsWith("fleet.toml:4: workload.duration_s: "), HasSubstr("after 1e+07 s"),
                    HasSubstr("arrivals within 8640000 s (100 days)")));
  EXPECT_THAT(fault(head + "stages = [[1, 5e6], [1, 5e6]]\n"), StartsWith("fleet.toml:3: workload.stages: "));
  EXPECT_THAT(fault(head + "stages = [[1, 1], [1, 1]]\ngap_s = 1e18\n"), StartsWith("fleet.toml:3: workload.stages: "));
  EXPECT_THAT(fault(head + "stages = [[1, inf]]\n"), HasSubstr("each stage is"));
  EXPECT_THAT(fault(head + "rate = 1\nduration_s = 60\nthink_s = 1e6\n"),
              AllOf(StartsWith("fleet.toml:5: workload.think_s: 10 turns with"), HasSubstr("(100 days)")));
  EXPECT_EQ(fault(head + "rate = 1\nduration_s = 60\nthink_s = 1e6\nturns = 1\n"), "no fault");
  EXPECT_THAT(fault(kTiersText, {"workload.rate=1e7"}), HasSubstr("from 1e-09 to 1000000"));
  EXPECT_THAT(fault(kTiersText, {"fleet.warmup_s=1e9"}), HasSubstr("from 0 to 8640000"));
  EXPECT_THAT(fault(kTiersText, {"engine.base_ms=1e12"}), HasSubstr("from 0 to 100000"));
}

TEST(SimConfig, ATierWithoutBandwidthIsOff) {
  const auto config = read_sim_config("[depot]\nlatency_ms = 2\n[workload]\ntrace = \"t\"\n", "fleet.toml", {});
  ASSERT_TRUE(config) << config.error().str();
  EXPECT_FALSE(config->fleet.tiers.any());
}

TEST(SimConfig, ReadsSessions) {
  const auto config = read_sim_config(
      "[workload]\ngenerator = \"multi-turn\"\nturns = [2, 8]\nthink_s = 30\nsystem_tokens = 1000\n"
      "stages = [[1, 60], [2, 60]]\n",
      "fleet.toml", {});
  ASSERT_TRUE(config) << config.error().str();
  EXPECT_EQ(config->sessions.turns.high, 8U);
  EXPECT_EQ(config->sessions.stages.size(), 2U);
  EXPECT_EQ(config->sessions.context_tokens, 131072U);
}

constexpr const char* kNamedText = R"([engine]
model = "llama-3-70b"
gpu = "h100:2"
[workload]
generator = "poisson"
rate = 1
duration_s = 10
)";

TEST(SimConfig, MakesAnEngineOfTheCatalogue) {
  const auto config = read_sim_config(kNamedText, "fleet.toml", {});
  ASSERT_TRUE(config) << config.error().str();
  EXPECT_EQ(config->fleet.tiers.kv_bytes_per_token, 163'840) << "fp8, since the GPU has it";
  EXPECT_EQ(config->fleet.tiers.layers, 80U);
  EXPECT_EQ(config->context_tokens_max, 8192U) << "the model's";
  EXPECT_NEAR(config->kv_tokens, (160e9 * 0.9 - 70.6e9) / 163'840, 2000);
  EXPECT_EQ(config->fleet.engine.blocks, config->kv_tokens / 16);
  EXPECT_TRUE(config->assumptions.empty());
  EXPECT_THAT(read_sim_config(kNamedText, "fleet.toml", {"engine.gpu=h100-pcie:4"})->assumptions,
              ElementsAre(HasSubstr("all-reduces between the 4 GPUs take no time: h100-pcie")));
  EXPECT_TRUE(read_sim_config(kNamedText, "fleet.toml",
                              {"engine.gpu=h100-pcie:4", "engine.base_ms=9", "engine.token_us=9", "engine.seq_us=9"})
                  ->assumptions.empty());
  const auto slow = read_sim_config(kNamedText, "fleet.toml", {"engine.precision=bf16", "engine.gpu=h100:4"});
  ASSERT_TRUE(slow) << slow.error().str();
  EXPECT_EQ(slow->fleet.tiers.kv_bytes_per_token, 2 * 163'840);
  EXPECT_NEAR(static_cast<double>(slow->fleet.pass.pair) / static_cast<double>(config->fleet.pass.pair), 1, 1e-3)
      << "twice the GPUs at half the speed";
  const auto own = read_sim_config(kNamedText, "fleet.toml",
                                   {"engine.kv_precision=bf16", "engine.base_ms=7", "engine.context_tokens=100000"});
  ASSERT_TRUE(own) << own.error().str();
  EXPECT_EQ(own->fleet.tiers.kv_bytes_per_token, 2 * 163'840);
  EXPECT_EQ(own->fleet.pass.base, 7'000'000'000);
  EXPECT_EQ(own->context_tokens_max, 100'000U);
}

TEST(SimConfig, NamesWhatTheCatalogueHasAndWhatDoesNotFit) {
  const std::string text = kNamedText;
  EXPECT_THAT(fault(text, {"engine.gpu=h100:1", "engine.precision=bf16"}),
              AllOf(HasSubstr("does not fit 1 x h100"), HasSubstr("72.0 GB. Use at least 2 GPUs")));
  EXPECT_THAT(fault(text, {"engine.kv_tokens=600000"}), HasSubstr("98.3 GB of KV at 163840 B a token"));
  EXPECT_THAT(fault(text, {"engine.model=lama-3-70b"}), AllOf(HasSubstr("llama-3-70b"), HasSubstr("config.json")));
  EXPECT_THAT(fault(text, {"engine.gpu=h10:2"}), AllOf(HasSubstr("h100"), HasSubstr("engine.catalogue")));
  EXPECT_THAT(fault(text, {"engine.gpu=h100:0"}), HasSubstr("NAME:COUNT"));
  EXPECT_THAT(fault(text, {"engine.precision=bf17"}), HasSubstr("bf16, fp16, fp8, int8, fp32"));
  EXPECT_THAT(fault(text, {"engine.preset=qwen3-32b-h100x2"}), HasSubstr("engine.model is there, too"));
  EXPECT_THAT(fault(text, {"engine.catalogue=nowhere.toml"}), HasSubstr("nowhere.toml"));
  EXPECT_THAT(fault("[engine]\nmodel = \"opt-13b\"\n" + text.substr(text.find("[workload]"))),
              StartsWith("fleet.toml:2: engine.model: engine.gpu is expected, too"));
  EXPECT_THAT(fault("[engine]\nprecision = \"fp8\"\n" + text.substr(text.find("[workload]"))),
              StartsWith("fleet.toml:2: engine.precision: engine.model and engine.gpu"));
}

TEST(SimConfig, SeesPathsFromTheFileThatNamesThem) {
  const std::string text = "[workload]\ntrace = \"traces/t.jsonl\"\n";
  const auto path = [&](const std::string& file, const std::vector<std::string>& set) {
    const auto config = read_sim_config(text, file, set);
    return config ? config->trace_path : config.error().str();
  };
  EXPECT_EQ(path("fleet.toml", {}), "traces/t.jsonl");
  EXPECT_EQ(path("examples/sim/fleet.toml", {}), "examples/sim/traces/t.jsonl");
  EXPECT_EQ(path("examples/fleet.toml", {"workload.trace=t.jsonl"}), "t.jsonl") << "typed where the command runs";
  EXPECT_EQ(path("examples/fleet.toml", {"workload.trace=/there/t.jsonl"}), "/there/t.jsonl");
}

TEST(SimConfig, SaysThatAValueWasTyped) {
  EXPECT_THAT(fault(kTiersText, {"fleet.policy=best"}), StartsWith("--set: fleet.policy: the policies are"));
}

TEST(SimConfig, BoundsWhatIsInFlightForEverySource) {
  for (const std::string text : {kTiersText, "[workload]\ntrace = \"t\"\nrepeats = 3\n"}) {
    const auto config = read_sim_config(text, "fleet.toml", {"workload.in_flight_max=400", "fleet.metrics_age_ms=50"});
    ASSERT_TRUE(config) << config.error().str();
    EXPECT_EQ(config->fleet.in_flight_max, 400U);
    EXPECT_EQ(config->fleet.metrics_age_s, 0.05);
    EXPECT_EQ(config->trace.repeats, text == kTiersText ? 1U : 3U);
  }
}

TEST(Ablations, EachChangesTheConfigurationOnceAndForAll) {
  const auto base = read_sim_config(kTiersText, "fleet.toml", {});
  ASSERT_TRUE(base);
  for (const Ablation& a : ablations()) {
    SimConfig config = *base;
    ASSERT_TRUE(a.active(config)) << a.name;
    ASSERT_TRUE(ablate(config, {std::string(a.name)})) << a.name;
    // Nothing of it is left; chunks and caches have no off of their own to ask for.
    const bool always =
        a.name == "prefix-cache" || a.name == "chunking" || a.name == "preemption" || a.name == "contention";
    EXPECT_EQ(a.active(config), always) << a.name;
    EXPECT_THAT(ablations_help(), HasSubstr(std::string(a.name)));
  }
}

TEST(Ablations, NameTheNearestAndWhatIsNotThere) {
  auto config = read_sim_config(kTiersText, "fleet.toml", {});
  ASSERT_TRUE(config);
  const auto unknown = ablate(*config, {"prefix-cash"});
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error(), HasSubstr("near: prefix-cache"));
  auto plain = read_sim_config("[workload]\ntrace = \"t\"\n", "fleet.toml", {});
  ASSERT_TRUE(plain);
  const auto absent = ablate(*plain, {"depot"});
  ASSERT_FALSE(absent);
  EXPECT_THAT(absent.error(), HasSubstr("nothing of that kind"));
}

}  // namespace
}  // namespace kvd::cmd
