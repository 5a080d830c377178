#include "io/discard_disk.h"

#include <cerrno>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "io/sim/sim_disk.h"
#include "io/testing/disk_testing.h"

namespace kvd::io {
namespace {

using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

// A disk in memory of 1 MiB that notes what it is to discard, on a real loop.
class DiscardDiskTest : public ::testing::Test {
 protected:
  std::unique_ptr<Disk> make(DiscardCall call) {
    auto engine = disks_.open(*loop_, log_, "disk", {.bytes = kMiB});
    EXPECT_TRUE(engine);
    auto disk = make_discard_disk(*loop_, std::move(*engine), std::move(call));
    EXPECT_TRUE(disk);
    return std::move(*disk);
  }
  static DiskOp discard(std::uint64_t offset, std::uint64_t bytes, std::vector<Status>& results) {
    DiskOp op;
    op.kind = DiskOp::Kind::kDiscard;
    op.offset = offset;
    op.discard_bytes = bytes;
    op.on_done = [&results](Status status) { results.push_back(status); };
    return op;
  }

  NullLog log_;
  std::unique_ptr<Loop> loop_ = std::move(make_real_loop().value());
  SimDisks disks_{1};
  std::vector<Status> results_;
};

TEST_F(DiscardDiskTest, TellsTheDeviceInOrder) {
  Ranges told;
  const auto disk = make([&](std::uint64_t offset, std::uint64_t bytes) {
    told.emplace_back(offset, bytes);
    return told.size() == 2 ? EOPNOTSUPP : 0;
  });
  EXPECT_TRUE(disk->discards());
  DiskOp first = discard(kPageBytes, 2 * kPageBytes, results_);
  DiskOp second = discard(0, kMiB, results_);
  ASSERT_TRUE(disk->submit(first));
  ASSERT_TRUE(disk->submit(second));
  EXPECT_EQ(disk->in_flight(), 2U);
  while (results_.size() < 2) loop_->run_once(Duration::max());
  EXPECT_EQ(told, (Ranges{{kPageBytes, 2 * kPageBytes}, {0, kMiB}}));
  EXPECT_TRUE(results_[0]);
  ASSERT_FALSE(results_[1]);
  EXPECT_EQ(results_[1].error().code, Code::kIo);
  EXPECT_EQ(results_[1].error().sys_errno, EOPNOTSUPP);
  EXPECT_EQ(disk->in_flight(), 0U);
}

TEST_F(DiscardDiskTest, RefusesWhatIsNotInTheDisk) {
  const auto disk = make([](std::uint64_t, std::uint64_t) { return 0; });
  for (const auto& [offset, bytes] : Ranges{{0, 0}, {0, 100}, {100, kPageBytes}, {0, 2 * kMiB}, {kMiB, kPageBytes}}) {
    DiskOp op = discard(offset, bytes, results_);
    const Status refused = disk->submit(op);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kInvalid);
  }
  EXPECT_EQ(disk->in_flight(), 0U);
}

TEST_F(DiscardDiskTest, HasABoundAndEndsWithWhatWaits) {
  std::promise<void> begun, go_on;
  auto disk = make([&, first = true](std::uint64_t, std::uint64_t) mutable {
    if (std::exchange(first, false)) {
      begun.set_value();
      go_on.get_future().wait();
    }
    return 0;
  });
  std::vector<std::unique_ptr<DiskOp>> ops;
  for (std::uint32_t i = 0; i < kDiscardsMax; ++i) {
    ops.push_back(std::make_unique<DiskOp>(discard(0, kPageBytes, results_)));
    ASSERT_TRUE(disk->submit(*ops.back()));
  }
  DiskOp more = discard(0, kPageBytes, results_);
  const Status refused = disk->submit(more);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kBusy);
  begun.get_future().wait();
  go_on.set_value();
  disk.reset();
  EXPECT_TRUE(results_.empty());
}

TEST_F(DiscardDiskTest, OtherDisksRefuseThem) {
  auto disk = disks_.open(*loop_, log_, "disk", {.bytes = kMiB});
  ASSERT_TRUE(disk);
  EXPECT_FALSE((*disk)->discards());
  DiskOp op = discard(0, kPageBytes, results_);
  const Status refused = (*disk)->submit(op);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalid);
}

}  // namespace
}  // namespace kvd::io
