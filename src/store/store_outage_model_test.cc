// Random operations on a store whose device goes off and comes back (testing/outage_run.h).
#include <gtest/gtest.h>

#include "store/testing/outage_run.h"

namespace kvd::store {
namespace {

constexpr std::uint64_t kBreaking = 10'000;  // of which failing reads turn the tier off
constexpr std::uint64_t kBreakers = 8;

class OneDeviceRun final : public OutageRun {
 public:
  explicit OneDeviceRun(std::uint64_t seed) : OutageRun(seed) {
    kit_.options.list_uses = seed % 2 == 1;
    begin();
    for (std::uint64_t n = 0; n < 10 * kBreakers; ++n) EXPECT_TRUE(kit_.put(kBreaking + n, 1, AckLevel::kWritten));
    kit_.settle();
    EXPECT_TRUE(kit_.reopen());
  }

 private:
  [[nodiscard]] bool off() const override { return kit_.stats().tier_off.value() != 0; }
  [[nodiscard]] io::SimDrive& drive() override { return kit_.drive(); }
  void break_down() override {
    if (breakers_ + kBreakers <= 10 * kBreakers && random_.chance(1, 2)) {
      kit_.drive().fail_all(EIO);
      for (std::uint64_t i = 0; i < kBreakers; ++i) kit_.get(kBreaking + breakers_++);
      kit_.loop.run_for(Millis(1));
    } else {
      kit_.drive().stall(UINT64_MAX, Duration::max());
      static_cast<void>(kit_.put(filler_++, 1, AckLevel::kWritten));
      kit_.loop.run_until([&] { return off(); }, std::chrono::minutes(1));
    }
  }

  std::uint64_t breakers_ = 0;
};

class StoreOutageModel : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(StoreOutageModel, NothingIsUndeadAndWhatWasSyncedStays) {
  OneDeviceRun run(GetParam());
  run.run(400);
  EXPECT_GT(run.returns(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, StoreOutageModel, ::testing::Range<std::uint64_t>(1, 41));

}  // namespace
}  // namespace kvd::store
