// A device made of measured passes: passes of a device that is known give that device back.
#include "cmd/sim_calibrate.h"

#include <cstdio>
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cmd/sim_config.h"
#include "cmd/text_file.h"
#include "model/catalogue.h"

namespace kvd::cmd {
namespace {

using testing::HasSubstr;

TEST(Calibrate, APlannedDeviceIsTheOneThatWasMeasured) {
  const model::Transformer& smol = *model::Catalogue::built_in().model("smollm2-135m");
  constexpr double kFlops = 0.6e12;
  constexpr double kBytes = 15e9;
  model::PassFit fit;
  fit.token_s = smol.token_flops() / kFlops;
  fit.context_s = smol.kv_token_bytes(2) / kBytes;
  fit.floor_s = smol.params() * 2 / kBytes + 0.009;
  fit.seq_s = 0.001;
  const std::string entry = device_entry(fit, smol, "mine", 8e9, 0.12, "test");
  model::Catalogue catalogue = model::Catalogue::built_in();
  const auto added = catalogue.add(entry, "mine.toml");
  ASSERT_TRUE(added) << added.error().str() << "\n" << entry;
  const model::Device* const device = catalogue.device("mine");
  ASSERT_NE(device, nullptr);
  EXPECT_NEAR(device->peak_flops_per_s("bf16") * device->compute_efficiency / kFlops, 1, 1e-3);
  EXPECT_NEAR(device->memory_bytes_per_s * device->memory_efficiency / kBytes, 1, 1e-3);
  EXPECT_NEAR(device->step_s, 0.010, 1e-5);
  EXPECT_EQ(device->error, 0.12);
  EXPECT_TRUE(device->origin.measured);
}

TEST(Calibrate, PassesWithoutContextMakeNoDevice) {
  const model::Transformer& smol = *model::Catalogue::built_in().model("smollm2-135m");
  EXPECT_TRUE(device_entry({.floor_s = 0.01, .token_s = 1e-4}, smol, "mine", 8e9, 0.1, "test").empty());
}

TEST(Calibrate, AFleetTakesTheEngineThatIsPrinted) {
  const model::Transformer& smol = *model::Catalogue::built_in().model("smollm2-135m");
  const model::LinearFit fit{0.0213, 3.25e-4, 4.5e-8, 1.125e-3, 2.5e-7};
  for (const model::Transformer* const named : {&smol, static_cast<const model::Transformer*>(nullptr)}) {
    const std::string text = engine_section(fit, named, 4096, {"of a test", "in two lines"}) +
                             "[workload]\ngenerator = \"poisson\"\nrate = 1\nduration_s = 10\n";
    const auto config = read_sim_config(text, "fleet.toml", {});
    ASSERT_TRUE(config) << config.error().str() << "\n" << text;
    EXPECT_EQ(config->fleet.pass.base, model::picoseconds(fit.base_s));
    EXPECT_EQ(config->fleet.pass.token, model::picoseconds(fit.token_s));
    EXPECT_EQ(config->fleet.pass.pair, model::picoseconds(fit.pair_s));
    EXPECT_EQ(config->fleet.pass.seq, model::picoseconds(fit.seq_s));
    EXPECT_EQ(config->fleet.pass.context, model::picoseconds(fit.context_s));
    EXPECT_EQ(config->context_tokens_max, 4096U);
    if (named == nullptr) continue;
    EXPECT_EQ(config->fleet.tiers.kv_bytes_per_token, smol.kv_token_bytes(2));
    EXPECT_EQ(config->fleet.tiers.layers, smol.layers());
  }
}

// What `kvdepot sim calibrate` says to these flags, and status 2.
std::string refused(const StudyFlags& flags) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_calibrate(flags), 2);
  return testing::internal::GetCapturedStderr();
}

TEST(Calibrate, OptionsThatWouldBeIgnoredAreRefused) {
  StudyFlags engine;
  engine.passes = "nowhere.csv";
  engine.engine = true;
  EXPECT_THAT(refused(engine), HasSubstr("nowhere.csv cannot be read"));
  StudyFlags flags = engine;
  flags.json = true;
  EXPECT_THAT(refused(flags), HasSubstr("--json: --device and --engine write TOML"));
  flags = engine;
  flags.memory = "8GiB";
  EXPECT_THAT(refused(flags), HasSubstr("--memory: belongs to --device"));
  flags = engine;
  flags.data = "data";
  EXPECT_THAT(refused(flags), HasSubstr("--data: the study's tables are not used"));
  flags = engine;
  flags.device = "mine";
  EXPECT_THAT(refused(flags), HasSubstr("choose one"));
  flags.engine = false;
  flags.context = 4096;
  EXPECT_THAT(refused(flags), HasSubstr("--context: belongs to --engine"));
  flags.device = "";
  flags.context = 0;
  flags.model = "smollm2-135m";
  EXPECT_THAT(refused(flags), HasSubstr("--model: belongs to --device and --engine"));
  flags = {};
  flags.test = "other.csv";
  EXPECT_THAT(refused(flags), HasSubstr("--test: a CSV of passes to fit to"));
  flags = {};
  flags.engine = true;
  EXPECT_THAT(refused(flags), HasSubstr("--engine: a CSV of the engine's passes"));
}

TEST(Calibrate, AnEngineNeedsItsContext) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "kvd_sim_calibrate_test.csv";
  std::string rows = "seconds,prefill_tokens,pairs,decodes,context_tokens\n";
  for (int i = 1; i <= 20; ++i) {
    const int tokens = 100 * i;
    rows +=
        fmt::format("{},{},{},0,0\n", 0.02 + 1e-4 * tokens + 1e-8 * tokens * tokens / 2, tokens, tokens * tokens / 2);
    rows += fmt::format("{},0,0,{},{}\n", 0.02 + 1e-3 * i + 1e-6 * tokens * i, i, tokens * i);
  }
  ASSERT_EQ(write_text(path.string(), rows), "");
  StudyFlags flags;
  flags.passes = flags.test = path.string();
  flags.engine = true;
  EXPECT_THAT(refused(flags), HasSubstr("--engine: its context is expected, too: --context TOKENS, or --model NAME"));
  const auto printed = [&] {
    testing::internal::CaptureStdout();
    EXPECT_EQ(run_calibrate(flags), 0);
    return testing::internal::GetCapturedStdout();
  };
  flags.context = 4096;
  EXPECT_THAT(printed(), HasSubstr("\ncontext_tokens = 4096\n"));
  flags.model = "smollm2-135m";
  EXPECT_THAT(printed(), HasSubstr("\ncontext_tokens = 4096\n"));
  flags.context = 0;
  EXPECT_THAT(printed(), HasSubstr("\ncontext_tokens = 8192\n")) << "the model's";
  std::remove(path.c_str());
}

}  // namespace
}  // namespace kvd::cmd
