// Tests of what `plan` makes of its flags, and of what it says about bad ones.
#include "cmd/plan_options.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cmd/testing/plan_flags.h"

namespace kvd::cmd {
namespace {

using testing::HasSubstr;

std::string complaint(const PlanFlags& flags) {
  const auto plan = make_plan(flags);
  return plan ? "" : plan.error();
}

std::string complaint(std::string PlanFlags::* flag, const char* value) {
  PlanFlags flags = chat();
  flags.*flag = value;
  return complaint(flags);
}

// A file in a folder of its own, removed at the end.
class TemporaryFile {
 public:
  TemporaryFile(const std::string& name, const std::string& text) {
    std::string folder = (std::filesystem::temp_directory_path() / "kvd_plan_XXXXXX").string();
    folder_ = mkdtemp(folder.data());
    path_ = folder_ / name;
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove_all(folder_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path folder_;
  std::filesystem::path path_;
};

constexpr const char* kTrace =
    "{\"timestamp\": 0, \"input_length\": 1024, \"output_length\": 10, \"hash_ids\": [0, 1]}\n"
    "{\"timestamp\": 10000, \"input_length\": 1024, \"output_length\": 30, \"hash_ids\": [0, 2]}\n";

TEST(PlanOptions, TheExampleJustWorks) {
  const auto plan = make_plan(chat());
  ASSERT_TRUE(plan.has_value()) << plan.error();
  EXPECT_EQ(plan->question.model->name, "llama-3-70b");
  EXPECT_EQ(plan->question.gpus, 2U);
  EXPECT_EQ(plan->question.precision, "fp8");
  EXPECT_DOUBLE_EQ(plan->question.kv_bytes_per_element, 1);
  EXPECT_DOUBLE_EQ(plan->question.sla.ttft_s, 0.4);
}

TEST(PlanOptions, AGpuWithoutFp8ComputesIn16Bits) {
  PlanFlags flags = chat();
  flags.gpu = "a100:4";
  EXPECT_EQ(make_plan(flags)->question.precision, "bf16");
}

TEST(PlanOptions, UnknownNamesGetTheNearestAndHowToAddOne) {
  EXPECT_THAT(complaint(&PlanFlags::model, "lama-3-70b"), HasSubstr("nearest: llama-3-70b"));
  EXPECT_THAT(complaint(&PlanFlags::model, "lama-3-70b"), HasSubstr("--catalogue FILE"));
  EXPECT_THAT(complaint(&PlanFlags::gpu, "h10O:2"), HasSubstr("nearest: h100"));
  EXPECT_THAT(complaint(&PlanFlags::gpu, "quantum"), HasSubstr("known are a100"));
  EXPECT_THAT(complaint(&PlanFlags::model, ""), HasSubstr("say which model"));
}

TEST(PlanOptions, NumbersAreChecked) {
  EXPECT_THAT(complaint(&PlanFlags::reuse, "1.5"), HasSubstr("--reuse is '1.5': expected a number from 0 to 1"));
  EXPECT_THAT(complaint(&PlanFlags::reuse, "nan"), HasSubstr("--reuse"));
  EXPECT_THAT(complaint(&PlanFlags::reuse, ""), HasSubstr("--reuse SHARE"));
  EXPECT_THAT(complaint(&PlanFlags::prompt, ""), HasSubstr("--prompt TOKENS"));
  EXPECT_THAT(complaint(&PlanFlags::prompt, "-3"), HasSubstr("--prompt"));
  EXPECT_THAT(complaint(&PlanFlags::gpu, "h100:0"), HasSubstr("--gpu is '0'"));
  EXPECT_THAT(complaint(&PlanFlags::replicas, "2.5"), HasSubstr("whole number"));
  EXPECT_THAT(complaint(&PlanFlags::precision, "fp7"), HasSubstr("one of bf16"));
  EXPECT_THAT(complaint(&PlanFlags::routing, "hash"), HasSubstr("affinity"));
}

TEST(PlanOptions, UnitsAreAskedFor) {
  EXPECT_THAT(complaint(&PlanFlags::sla_tpot, "40"), HasSubstr("--sla-tpot is '40': expected a time with its unit"));
  EXPECT_THAT(complaint(&PlanFlags::io, "40"), HasSubstr("--io is '40': expected bytes per second with a unit"));
  EXPECT_EQ(complaint(&PlanFlags::io, "40GB/s"), "");
}

TEST(PlanOptions, AnyStorageMayHaveAPrice) {
  const TemporaryFile file("mine.toml",
                           "[[storage]]\nname = \"our-flash\"\nsource = \"x\"\ncapacity_bytes = 1e12\n"
                           "read_bytes_per_s = [[4096, 1e9]]\nwrite_bytes_per_s = [[4096, 1e9]]\n");
  PlanFlags flags = chat();
  flags.catalogue = {file.path()};
  flags.price_gpu = "2.5";
  flags.price_flash = "20";
  flags.prices = {"our-flash=35", "nvme-gen5=25"};
  const auto plan = make_plan(flags);
  ASSERT_TRUE(plan.has_value()) << plan.error();
  const std::map<std::string, double> expected{{"our-flash", 35}, {"nvme-gen4", 20}, {"nvme-gen5", 25}};
  EXPECT_EQ(plan->question.prices.terabyte_month, expected);
  flags.prices = {"our-flush=35"};
  EXPECT_THAT(complaint(flags), HasSubstr("no storage 'our-flush' is known; nearest: our-flash"));
  for (const char* bad : {"dram", "dram="}) {
    flags.prices = {bad};
    EXPECT_THAT(complaint(flags), HasSubstr("expected NAME=DOLLARS"));
  }
  flags.prices = {"dram=cheap"};
  EXPECT_THAT(complaint(flags), HasSubstr("--price is 'cheap': expected a number"));
  flags.prices.clear();
  flags.price_gpu = "";
  EXPECT_THAT(complaint(flags), HasSubstr("--price-gpu"));
}

TEST(PlanOptions, AConfigJsonIsAModelToo) {
  const TemporaryFile file("config.json", R"({"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256})");
  PlanFlags flags = chat();
  flags.model = file.path();
  const auto plan = make_plan(flags);
  ASSERT_TRUE(plan.has_value()) << plan.error();
  EXPECT_NEAR(plan->question.model->params(), 8.03e9, 0.01e9);
  flags.model = "missing/config.json";
  EXPECT_THAT(complaint(flags), HasSubstr("missing/config.json cannot be read"));
}

TEST(PlanOptions, ATraceGivesLengthsRateAndReuse) {
  const TemporaryFile file("t.jsonl", kTrace);
  PlanFlags flags;
  flags.model = "llama-3-70b";
  flags.gpu = "h100:2";
  flags.trace = file.path();
  const auto plan = make_plan(flags);
  ASSERT_TRUE(plan.has_value()) << plan.error();
  EXPECT_DOUBLE_EQ(plan->question.workload.prompt_tokens, 1024);
  EXPECT_DOUBLE_EQ(plan->question.workload.output_tokens, 20);
  EXPECT_DOUBLE_EQ(plan->question.workload.reuse, 0.25);
  EXPECT_DOUBLE_EQ(plan->question.requests_per_s, 0.2);
  EXPECT_DOUBLE_EQ(plan->question.hit_curve(512 * 2, true), 0.25);
  EXPECT_DOUBLE_EQ(plan->question.hit_curve(512, true), 0);
}

TEST(PlanOptions, PrivateStoresSeeTheirOwnRequestsOnly) {
  const TemporaryFile file("t.jsonl", kTrace);
  PlanFlags flags;
  flags.model = "llama-3-70b";
  flags.gpu = "h100:2";
  flags.trace = file.path();
  flags.replicas = "2";
  const auto plan = make_plan(flags);
  ASSERT_TRUE(plan.has_value()) << plan.error();
  EXPECT_DOUBLE_EQ(plan->question.hit_curve(1e9, false), 0);
  EXPECT_DOUBLE_EQ(plan->question.hit_curve(1e9, true), 0.25);
}

TEST(PlanOptions, ATraceBeyondTheContextIsRefusedWithItsLine) {
  const TemporaryFile file("t.jsonl", kTrace);
  PlanFlags flags = chat();
  flags.trace = file.path();
  flags.context = "1040";
  EXPECT_THAT(complaint(flags),
              HasSubstr("t.jsonl:2: 1024 prompt and 30 output tokens make 1054, more than the context of 1040"));
  flags.context = "1054";
  EXPECT_EQ(complaint(flags), "");
}

}  // namespace
}  // namespace kvd::cmd
