#include "client/copy_job.h"

#include <array>
#include <deque>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace kvd::client {
namespace {

using JobState = CopyJob::State;

constexpr OpId kJobOp = 77;
constexpr std::size_t kJobSlabBytes = std::size_t{64} << 10;

// Counts; every seventh slab is damaged.
class CountedWork final : public CopyJob::Work {
 public:
  explicit CountedWork(std::size_t slabs) : runs_(slabs) {}
  [[nodiscard]] bool run_slab(std::size_t slab) const noexcept override {
    runs_[slab].fetch_add(1);
    return slab % 7 != 3;
  }
  [[nodiscard]] int runs(std::size_t slab) const { return runs_[slab].load(); }

 private:
  mutable std::deque<std::atomic<int>> runs_;
};

void run_what_is_left(CopyJob& job, OpId op) {
  while (const auto claim = job.claim(op)) CopyJob::run(*claim);
}

// Whether there is a claim for it, which is run.
bool gets_some(CopyJob& job, OpId op) {
  const auto claim = job.claim(op);
  if (claim) CopyJob::run(*claim);
  return claim.has_value();
}

TEST(CopyJob, SlabsAreClaimedInOrderAndFewerTowardsTheEnd) {
  CopyJob job(true);
  const CountedWork work(40);
  job.open(kJobOp, work, 40, kJobSlabBytes);
  std::size_t next = 0;
  std::size_t last = 4;  // 256 KiB
  while (const auto claim = job.claim(kJobOp)) {
    EXPECT_EQ(claim->first, next);
    EXPECT_LE(claim->count, last);
    last = claim->count;
    next += claim->count;
    CopyJob::run(*claim);
  }
  EXPECT_EQ(next, 40U);
  EXPECT_EQ(last, 1U);
  job.close();
}

TEST(CopyJob, ALargeSlabIsAClaimAndManySmallOnesAreOne) {
  CopyJob job(true);
  const CountedWork work(10'000);
  job.open(kJobOp, work, 3, std::size_t{1} << 20);
  CopyJob::run(*job.claim(kJobOp));
  EXPECT_EQ(job.state(0), JobState::kGood);
  EXPECT_EQ(job.state(1), JobState::kMissing) << "a claim of its own";
  job.close();
  job.open(kJobOp, work, 10'000, 100);
  EXPECT_EQ(job.state(0), JobState::kMissing) << "of the job before";
  EXPECT_EQ(job.run_next(), 2500U) << "a quarter";
  job.close();
}

TEST(CopyJob, OnlyWhoWaitsForTheOperationGetsSome) {
  CopyJob job(true);
  const CountedWork work(8);
  EXPECT_FALSE(gets_some(job, kJobOp));
  job.open(kJobOp, work, 8, kJobSlabBytes);
  EXPECT_TRUE(job.wants(kJobOp));
  EXPECT_FALSE(job.wants(kJobOp + 1));
  EXPECT_FALSE(gets_some(job, kJobOp + 1));
  EXPECT_FALSE(gets_some(job, 0));
  EXPECT_TRUE(gets_some(job, kJobOp));
  job.close();
  EXPECT_FALSE(job.wants(kJobOp));
  EXPECT_FALSE(gets_some(job, kJobOp)) << "closed, with slabs left";
  job.open(kJobOp + 1, work, 8, kJobSlabBytes);
  EXPECT_FALSE(gets_some(job, kJobOp)) << "another's turn";
  run_what_is_left(job, kJobOp + 1);
  EXPECT_FALSE(job.wants(kJobOp + 1)) << "all are taken";
  job.close();
  job.close();
}

TEST(CopyJob, WhereThereIsOneCoreNobodyIsWanted) {
  CopyJob job(false);
  const CountedWork work(8);
  job.open(kJobOp, work, 8, kJobSlabBytes);
  EXPECT_FALSE(job.wants(kJobOp));
  job.close();
}

TEST(CopyJob, EachSlabIsRunOnceAndItsResultIsItsOwn) {
  CopyJob job(true);
  for (const std::size_t slabs : {1000U, 200U, 3000U}) {
    const CountedWork work(slabs);
    job.open(kJobOp + slabs, work, slabs, 4096);
    std::array<std::thread, 3> helpers;
    for (std::thread& helper : helpers) helper = std::thread([&] { run_what_is_left(job, kJobOp + slabs); });
    while (job.run_next() > 0) {
    }
    for (std::size_t slab = 0; slab < slabs; ++slab) {
      while (job.state(slab) == JobState::kMissing) job.await(slab, Millis(1));
      EXPECT_EQ(job.state(slab), slab % 7 == 3 ? JobState::kDamaged : JobState::kGood) << slab;
      EXPECT_EQ(work.runs(slab), 1) << slab;
    }
    job.close();
    for (std::thread& helper : helpers) helper.join();
  }
}

// Stays within its slab for a while, and notes whether the job was closed meanwhile.
class SlowWork final : public CopyJob::Work {
 public:
  [[nodiscard]] bool run_slab(std::size_t) const noexcept override {
    begun = true;
    for (int i = 0; i < 20'000; ++i) {
      if (closed) closed_under_it = true;
      std::this_thread::yield();
    }
    return true;
  }
  mutable std::atomic<bool> begun{false}, closed_under_it{false};
  std::atomic<bool> closed{false};
};

TEST(CopyJob, TheEndWaitsForWhoIsAtASlab) {
  CopyJob job(true);
  SlowWork work;
  job.open(kJobOp, work, 8, std::size_t{1} << 20);
  std::thread helper([&] { CopyJob::run(*job.claim(kJobOp)); });
  while (!work.begun) std::this_thread::yield();
  job.close();
  work.closed = true;
  EXPECT_EQ(job.state(0), JobState::kGood);
  EXPECT_EQ(job.state(1), JobState::kMissing) << "nobody began it";
  helper.join();
  EXPECT_FALSE(work.closed_under_it);
}

}  // namespace
}  // namespace kvd::client
