// Random operations on a store of two devices of which one goes off and comes back at times (testing/outage_run.h).
// Both are there at each start.
#include <gtest/gtest.h>

#include "store/testing/outage_run.h"

namespace kvd::store {
namespace {

class TwoDevicesRun final : public OutageRun {
 public:
  explicit TwoDevicesRun(std::uint64_t seed) : OutageRun(seed) {
    kit_.add_device(300);
    begin();
  }

 private:
  [[nodiscard]] bool off() const override {
    return kit_.stats().tier_outages.value() > kit_.log.count("is on again") - returned_before_;
  }
  [[nodiscard]] io::SimDrive& drive() override { return kit_.drive(off_); }
  void break_down() override {
    off_ = random_.below(2);
    drive().stall(UINT64_MAX, Duration::max());
    while (!off() && !::testing::Test::HasFailure()) {
      static_cast<void>(kit_.put(filler_++));
      kit_.loop.run_for(std::chrono::seconds(1));
    }
  }
  void before_start() override { returned_before_ = kit_.log.count("is on again"); }

  std::size_t off_ = 0;  // the device that is, or was last
  std::uint64_t returned_before_ = 0;
};

class StoreDevicesModel : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(StoreDevicesModel, NothingIsUndeadAndWhatWasSyncedStays) {
  TwoDevicesRun run(GetParam());
  run.run(400);
  EXPECT_GT(run.returns(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, StoreDevicesModel, ::testing::Range<std::uint64_t>(1, 41));

}  // namespace
}  // namespace kvd::store
