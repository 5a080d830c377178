// Tests of jobs on several threads: each is run once, however many threads there are.
#include "cmd/run_jobs.h"

#include <algorithm>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace kvd::cmd {
namespace {

TEST(RunJobs, RunsEachOnceOnAnyNumberOfThreads) {
  for (const unsigned threads : {1U, 3U, 16U}) {
    for (const std::size_t jobs : {0UL, 1UL, 2UL, 100UL}) {
      std::vector<int> runs(jobs, 0);
      run_jobs(jobs, threads, [&](std::size_t i) { ++runs[i]; }, [](std::size_t, std::size_t) {});
      EXPECT_EQ(std::ranges::count(runs, 1), static_cast<std::ptrdiff_t>(jobs)) << threads << " threads";
    }
  }
}

TEST(RunJobs, TellsProgressOnTheCallingThread) {
  const auto caller = std::this_thread::get_id();
  std::size_t last = 0;
  const auto progress = [&](std::size_t done, std::size_t all) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(all, 50U);
    EXPECT_GT(done, last);
    last = done;
  };
  run_jobs(50, 4, [](std::size_t) {}, progress);
  EXPECT_LE(last, 50U);
  last = 0;
  run_jobs(50, 1, [](std::size_t) {}, progress);
  EXPECT_EQ(last, 50U) << "alone it does all of them";
}

TEST(RunJobs, AThreadAloneRunsThemInOrder) {
  std::vector<std::size_t> order;
  run_jobs(5, 1, [&](std::size_t i) { order.push_back(i); }, [](std::size_t, std::size_t) {});
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace kvd::cmd
