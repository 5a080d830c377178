// A device made of measured passes: passes of a device that is known give that device back.
#include "cmd/sim_calibrate.h"

#include <gtest/gtest.h>

#include "model/catalogue.h"

namespace kvd::cmd {
namespace {

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

}  // namespace
}  // namespace kvd::cmd
