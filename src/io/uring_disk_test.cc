// Tests of the io_uring engine with a ring that says what no kernel says on demand.
#include "io/uring_disk.h"

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>
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
  const auto disk = make_uring_disk(**loop, log, std::move(*file), std::move(*ring), 16);

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

// Transfers in memory that the disk knows, beside it, and across the ends of what is registered together; also when the
// loop goes on on another thread, where it is registered anew.
TEST(UringDisk, TransfersWhereItKnowsTheMemory) {
  const std::string path = testing::TempDir() + "kvd_uring_memory_test";
  auto loop = make_real_loop();
  ASSERT_TRUE(loop);
  RecordingLog log;
  auto file = open_disk_file(log, path, {.bytes = kMiB});
  ASSERT_TRUE(file);
  auto ring = Uring::create(file->fd.get(), 16);
  if (!ring) return;
  constexpr std::uint64_t kPart = 4 * kPageBytes;
  const auto disk = make_uring_disk(**loop, log, std::move(*file), std::move(*ring), 16, kPart);
  const TestBuffer known(10 * kPageBytes, 7);
  const TestBuffer other(10 * kPageBytes);
  // (known page, pages): inside a part, a whole one, across two, the last and shorter one, all.
  const auto pass = [&] {
    for (const auto& [page, pages] : {std::pair{1, 2}, {4, 4}, {3, 2}, {8, 2}, {0, 10}}) {
      const auto at = static_cast<std::size_t>(page) * kPageBytes;
      const auto bytes = static_cast<std::size_t>(pages) * kPageBytes;
      TestOp write(kWrite, at, {known.part(at, bytes)});
      TestOp read(kRead, at, {other.part(at, bytes)});
      for (TestOp* op : {&write, &read}) {
        ASSERT_TRUE(disk->submit(op->op));
        while (!op->result) (*loop)->run_once(Duration::max());
        ASSERT_TRUE(*op->result);
      }
      ASSERT_EQ(std::memcmp(known.data() + at, other.data() + at, bytes), 0) << page;
      std::memset(other.data(), 0, 10 * kPageBytes);
      TestOp back(kRead, at, {known.part(at, bytes)});
      const std::vector<std::byte> before(known.data(), known.data() + 10 * kPageBytes);
      std::memset(known.data() + at, 0, bytes);
      ASSERT_TRUE(disk->submit(back.op));
      while (!back.result) (*loop)->run_once(Duration::max());
      ASSERT_TRUE(*back.result);
      ASSERT_EQ(std::memcmp(known.data(), before.data(), before.size()), 0) << page;
    }
  };
  pass();
  disk->use_memory(known.span());
  pass();
  std::thread([&] { pass(); }).join();
  pass();
  EXPECT_EQ(disk->in_flight(), 0u);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace kvd::io
