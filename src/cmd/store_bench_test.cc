// Tests of the store's workloads on a real disk: they count what they say they do, and notice what is wrong. No times.
#include "cmd/store_bench.h"

#include <gtest/gtest.h>

#include "cmd/device_bench.h"
#include "store/testing/store_kit.h"

namespace kvd::cmd {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class StoreBenchTest : public ::testing::Test {
 protected:
  StoreBenchTest() {
    options_.dir = dir_.path() + "/store";
    options_.pool_bytes = 64 * kMiB;
    options_.flash_bytes = 132 * kMiB;
    options_.size = {4, 64 << 10};
  }
  std::unique_ptr<StoreBench> open() {
    std::string why;
    auto bench = StoreBench::open(log_, options_, why);
    EXPECT_TRUE(bench) << why;
    return bench ? std::move(*bench) : nullptr;
  }
  store::TempDir dir_;
  NullLog log_;
  StoreBenchOptions options_;
};

TEST_F(StoreBenchTest, ReadsFromFlashWhatItHasPut) {
  auto bench = open();
  const std::uint64_t records = bench->records_max();
  EXPECT_GT(records, 200u);
  const auto put = bench->put(0, 100);
  ASSERT_TRUE(put);
  EXPECT_EQ(put->bytes, 100 * options_.size.bytes());
  EXPECT_EQ(put->segments_evicted, 0u);
  EXPECT_EQ(bench->get({.records = 100, .bytes = 25 * kMiB}).error().code, Code::kInvalid) << "they are in the pool";
  bench->close();
  bench = open();
  const auto got = bench->get({.records = 100, .bytes = 10 * kMiB, .keys = 7});
  ASSERT_TRUE(got);
  EXPECT_EQ(got->bytes, 10 * kMiB);
  EXPECT_GT(got->seconds, 0);
  bench->close();
  bench = open();
  ASSERT_TRUE(bench->get({.records = 100, .bytes = 25 * kMiB, .in_order = true}));
}

TEST_F(StoreBenchTest, AMissIsAnErrorAndNoFigure) {
  auto bench = open();
  ASSERT_TRUE(bench->put(0, 10));
  bench->close();
  bench = open();
  EXPECT_EQ(bench->get({.records = 20, .bytes = 5 * kMiB}).error().code, Code::kNotFound);
  EXPECT_EQ(bench->get_layers(5, 10, false).error().code, Code::kNotFound);
  EXPECT_EQ(bench->get_from_pool(20, 1, StoreBench::PoolGet::kBorrow).error().code, Code::kNotFound);
  EXPECT_EQ(bench->put(9, 1).error().code, Code::kInvalid) << "it is there already";
}

TEST_F(StoreBenchTest, LayersComeInOrderAndPoolGetsStayInThePool) {
  auto bench = open();
  ASSERT_TRUE(bench->put(0, 32));
  bench->close();
  bench = open();
  const auto layered = bench->get_layers(0, 16, false);
  ASSERT_TRUE(layered);
  EXPECT_EQ(layered->bytes, 16 * options_.size.bytes());
  EXPECT_GT(layered->first_layer_seconds, 0);
  EXPECT_LE(layered->first_layer_seconds, layered->seconds);
  EXPECT_TRUE(bench->get_layers(16, 16, true));
  for (const auto how : {StoreBench::PoolGet::kBorrow, StoreBench::PoolGet::kCopy, StoreBench::PoolGet::kMemcpy}) {
    const auto got = bench->get_from_pool(32, 2, how);
    ASSERT_TRUE(got);
    EXPECT_EQ(got->bytes, 64 * options_.size.bytes());
  }
}

TEST_F(StoreBenchTest, PutsIntoAFullStoreGiveUpSegments) {
  auto bench = open();
  const std::uint64_t records = bench->records_max();
  ASSERT_TRUE(bench->put(0, records));
  const auto more = bench->put(records, 200);
  ASSERT_TRUE(more);
  EXPECT_GT(more->segments_evicted, 0u);
}

TEST_F(StoreBenchTest, SeveralDrivesAreFilledAndReadTogether) {
  options_.devices = {dir_.path() + "/second"};
  auto bench = open();
  const std::uint64_t records = bench->records_max();
  const auto put = bench->put(0, records);
  ASSERT_TRUE(put);
  EXPECT_EQ(put->segments_evicted, 0u) << "twice as many fit";
  EXPECT_GT(records * options_.size.bytes(), 100 * kMiB);
  bench->close();
  bench = open();
  ASSERT_TRUE(bench->get({.records = records, .bytes = 25 * kMiB, .keys = 7}));
}

TEST_F(StoreBenchTest, SeveralDrivesTransferTogetherWhatWasAskedOfEach) {
  auto devices = DeviceBench::open(log_, {dir_.path() + "/a", dir_.path() + "/b"}, 8 * kMiB);
  ASSERT_TRUE(devices);
  const auto written = (*devices)->write(8 * kMiB, kMiB, 4);
  ASSERT_TRUE(written);
  EXPECT_EQ(written->bytes, 16 * kMiB);
  const auto read = (*devices)->read(4 * kMiB, 64 << 10, 32, DeviceBench::Order::kRandom, 1);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->bytes, 8 * kMiB);
}

TEST_F(StoreBenchTest, TheDriveIsReadAndWrittenInFull) {
  auto device = DeviceBench::open(log_, {dir_.path() + "/device"}, 8 * kMiB);
  ASSERT_TRUE(device);
  const auto written = (*device)->write(8 * kMiB, kMiB, 4);
  ASSERT_TRUE(written);
  EXPECT_EQ(written->bytes, 8 * kMiB);
  const auto read = (*device)->read(4 * kMiB, 64 << 10, 32, DeviceBench::Order::kRandom, 1);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->bytes, 4 * kMiB);
}

}  // namespace
}  // namespace kvd::cmd
