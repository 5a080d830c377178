// Tests of Pool: what is evicted for a record, and what is not.
#include "store/pool.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "block/schema.h"
#include "io/testing/deny_syscall.h"

namespace kvd::store {
namespace {

constexpr std::uint32_t kPoolPages = 4096;

constexpr std::uint32_t kSmall = 4;
constexpr std::uint32_t kLarge = 180;

class PoolTest : public ::testing::Test {
 protected:
  // A record of `pages` pages that may be evicted; null when there is no room.
  PoolRecord* add(std::uint32_t pages) {
    const block::RecordShape& shape = shapes_
                                          .try_emplace(pages, block::RecordShape{.layers = 1,
                                                                                 .slab_bytes = 4096 * pages,
                                                                                 .slab_stride = 4096 * pages,
                                                                                 .table_bytes = 0,
                                                                                 .schema_hash = 0})
                                          .first->second;
    ++keys_;
    const RecordKey key{.ns = Namespaces::kNone, .id = {{keys_, keys_}, 0, 0}, .hash = keys_};
    PoolRecord* record = pool_->allocate(key, shape);
    if (record != nullptr) pool_->publish(*record, PoolRecord::State::kClean);
    return record;
  }
  // Fills the pool with clean records of four pages.
  std::vector<PoolRecord*> fill() {
    std::vector<PoolRecord*> records;
    for (std::uint32_t i = 0; i < kPoolPages / kSmall; ++i) records.push_back(add(kSmall));
    EXPECT_EQ(pool_->used_bytes(), pool_->bytes());
    return records;
  }
  // Uses every record once, in random order.
  void shuffle(const std::vector<PoolRecord*>& records) {
    Random random(7);
    for (std::size_t i = 0; i < 4 * records.size(); ++i) pool_->touch(*records[random.below(records.size())]);
  }
  [[nodiscard]] std::uint64_t evicted() const { return stats_.pool_evictions.value(); }

  std::map<std::uint32_t, block::RecordShape> shapes_;  // by pages; outlive the records
  StoreStats stats_;
  Namespaces namespaces_{1 << 20};
  std::unique_ptr<Pool> pool_ = std::move(*Pool::create(std::uint64_t{kPoolPages} * 4096, stats_, namespaces_));
  std::uint64_t keys_ = 0;
};

TEST_F(PoolTest, TheLeastRecentlyUsedGoesFirst) {
  auto records = fill();
  pool_->touch(*records[0]);
  const RecordKey second = records[1]->key;
  ASSERT_NE(add(kSmall), nullptr);
  EXPECT_EQ(evicted(), 1U);
  EXPECT_EQ(pool_->find(second), nullptr);
}

TEST_F(PoolTest, ALargeRecordTakesNeighboursAndNoOthers) {
  shuffle(fill());
  ASSERT_NE(add(kLarge), nullptr);
  EXPECT_EQ(evicted(), 45U);  // 180 pages of four each
}

TEST_F(PoolTest, OfTheStretchesAroundAnOldRecordTheOldestGoes) {
  auto records = fill();
  pool_->touch(*records[501]);  // behind the oldest
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (i < 498 || i > 500) pool_->touch(*records[i]);
  }
  const RecordKey kept = records[501]->key;
  ASSERT_NE(add(3 * kSmall), nullptr);
  EXPECT_EQ(evicted(), 3U);
  EXPECT_NE(pool_->find(kept), nullptr);
}

// The oldest record lies between the newest: these do not go with it where the next one has old neighbours.
TEST_F(PoolTest, NewNeighboursOfTheOldestRecordStay) {
  auto records = fill();
  const auto is_next = [](std::size_t i) { return i >= 500 && i < 503; };
  const auto is_beside = [](std::size_t i) { return i >= 98 && i <= 102; };
  std::vector<RecordKey> kept;
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (is_next(i)) pool_->touch(*records[i]);
    if (is_beside(i) && i != 100) kept.push_back(records[i]->key);
  }
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (!is_next(i) && !is_beside(i)) pool_->touch(*records[i]);
  }
  for (std::size_t i = 98; i <= 102; ++i) {
    if (i != 100) pool_->touch(*records[i]);
  }
  ASSERT_NE(add(3 * kSmall), nullptr);
  EXPECT_EQ(evicted(), 3U);
  for (const RecordKey& key : kept) EXPECT_NE(pool_->find(key), nullptr);
}

TEST_F(PoolTest, WhatCannotBeHadEvictsNothing) {
  auto records = fill();
  shuffle(records);
  std::vector<Pin> pins;
  for (std::size_t i = 0; i < records.size(); i += 30) pins.emplace_back(records[i]);
  EXPECT_EQ(pool_->room_bytes(), (records.size() - pins.size()) * kSmall * 4096);
  EXPECT_EQ(add(kLarge), nullptr);
  EXPECT_EQ(evicted(), 0U);
  EXPECT_NE(add(29 * kSmall), nullptr);
  EXPECT_EQ(evicted(), 29U);
}

// Only one stretch of the pool is long enough, and it is far from the oldest records.
TEST_F(PoolTest, TheOnlyStretchIsFound) {
  auto records = fill();
  std::vector<Pin> pins;
  for (std::size_t i = 0; i < records.size(); i += 10) {
    if (i < 700 || i > 750) pins.emplace_back(records[i]);
  }
  for (std::size_t i = 680; i < 780; ++i) pool_->touch(*records[i]);
  PoolRecord* large = add(kLarge);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(evicted(), 45U);
  pins.emplace_back(large);
  EXPECT_EQ(add(kLarge), nullptr);
  EXPECT_EQ(evicted(), 45U);
}

// Records of many sizes that come, are pinned and go: no put costs more than it may, and nothing is lost.
TEST_F(PoolTest, EvictionIsBoundedWhateverTheSizes) {
  Random random(3);
  std::vector<Pin> pins;
  std::size_t refused = 0;
  for (int step = 0; step < 20'000; ++step) {
    const auto pages = static_cast<std::uint32_t>(1 + random.below(random.below(10) == 0 ? 300 : 20));
    const std::uint64_t used = pool_->used_bytes() / 4096;
    const std::uint64_t before = evicted();
    PoolRecord* record = add(pages);
    if (record == nullptr) {
      ++refused;
      ASSERT_EQ(evicted(), before);
    } else if (evicted() > before + 1) {
      ASSERT_LE(used + pages - pool_->used_bytes() / 4096, 4U * pages);
    }
    if (record != nullptr && random.below(20) == 0) pins.emplace_back(record);
    if (pins.size() > 20) pins.erase(pins.begin() + static_cast<std::ptrdiff_t>(random.below(pins.size())));
  }
  EXPECT_LT(refused, 2'000U);
}

// Or a child that lives on would keep all of the pool's memory after this process has been killed.
TEST_F(PoolTest, AForkedChildKeepsNothingOfThePool) {
  const int fd = pool_->fd();
  ASSERT_GE(::fcntl(fd, F_GETFD), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(::fcntl(fd, F_GETFD) < 0 && errno == EBADF ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_GE(::fcntl(fd, F_GETFD), 0) << "the parent keeps its own";
}

// The pool is reserved at start; that the machine has no memory for it shows when its pages are touched.
TEST(PoolPrefault, MemoryThatIsNotThereIsToldAtOnce) {
  RecordingLog log;
  bool denied = false;
  std::thread([&] {
    denied = io::deny_syscall(SYS_madvise, ENOMEM, 2, 16);  // MADV_POPULATE_WRITE = 23, and none of the others
    if (!denied) return;
    StoreStats stats;
    Namespaces namespaces{1 << 20};
    auto pool = Pool::create(std::uint64_t{64} << 20, stats, namespaces);
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
