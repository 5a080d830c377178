// Tests of the io_uring engine with a ring that says what no kernel says on demand.
#include "io/uring_disk.h"

#include <atomic>
#include <filesystem>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "io/testing/disk_testing.h"

#ifndef IORING_SQ_TASKRUN
#define IORING_SQ_TASKRUN (1U << 2)
#endif

namespace kvd::io {
namespace {

// Kernels set the flag for deferred work after they have put the work into their list, so it may stay set when that has
// been done meanwhile.
TEST(UringDisk, FlagThatTheKernelLeftSetDoesNotHoldTheLoop) {
  const std::string path = testing::TempDir() + "kvd_uring_disk_test";
  auto loop = make_real_loop();
  ASSERT_TRUE(loop);
  NullLog log;
  auto file = open_disk_file(log, path, {.bytes = kMiB});
  ASSERT_TRUE(file);
  auto ring = Uring::create(file->fd.get(), 16);
  if (!ring) return;  // no io_uring here, and nothing that could hold the loop
  unsigned* const flags = ring->ring().sq.kflags;
  const auto disk = make_uring_disk(**loop, std::move(*file), std::move(*ring), 16);

  const TestBuffer buffer(16 * kPageBytes);
  std::vector<std::unique_ptr<TestOp>> ops;
  for (std::size_t i = 0; i < 16; ++i) {
    ops.push_back(
        std::make_unique<TestOp>(kRead, i * kPageBytes, std::vector{buffer.part(i * kPageBytes, kPageBytes)}));
    TestOp& op = *ops.back();
    op.op.on_done = [&op, flags](Status status) {
      op.result = status;
      std::atomic_ref(*flags).fetch_or(IORING_SQ_TASKRUN);
    };
    ASSERT_TRUE(disk->submit(op.op));
  }
  for (const auto& op : ops) {
    while (!op->result) (*loop)->run_once(Duration::max());
    EXPECT_TRUE(*op->result);
  }
  EXPECT_EQ(disk->in_flight(), 0u);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace kvd::io
