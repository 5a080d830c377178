// Tests of Pool.
#include "store/pool.h"

#include <sys/syscall.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "io/testing/deny_syscall.h"

namespace kvd::store {
namespace {

// The pool is reserved at start; that the machine has no memory for it shows when its pages are touched.
TEST(PoolPrefault, MemoryThatIsNotThereIsToldAtOnce) {
  RecordingLog log;
  bool denied = false;
  std::thread([&] {
    denied = io::deny_syscall(SYS_madvise, ENOMEM, 2, 16);  // MADV_POPULATE_WRITE = 23, and none of the others
    if (!denied) return;
    StoreStats stats;
    auto pool = Pool::create(std::uint64_t{64} << 20, stats);
    ASSERT_TRUE(pool.has_value());
    (*pool)->prefault(log);
    for (int i = 0; i < 500 && log.count("pool: only 0 of 64 MiB") == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }).join();
  if (!denied) GTEST_SKIP() << "system calls cannot be denied here";
  EXPECT_EQ(log.count("pool: only 0 of 64 MiB"), 1U);
}

}  // namespace
}  // namespace kvd::store
