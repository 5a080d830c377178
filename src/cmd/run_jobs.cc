#include "cmd/run_jobs.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/check.h"

namespace kvd::cmd {

unsigned threads_of_machine() noexcept { return std::max(1U, std::thread::hardware_concurrency()); }

void run_jobs(std::size_t jobs, unsigned threads, const std::function<void(std::size_t)>& job,
              const std::function<void(std::size_t done, std::size_t all)>& progress) {
  KVD_CHECK(threads > 0);
  std::atomic<std::size_t> next{0};
  std::atomic<std::size_t> done{0};
  const auto work = [&](bool tells) {
    for (std::size_t i = next++; i < jobs; i = next++) {
      job(i);
      const std::size_t now = ++done;
      if (tells) progress(now, jobs);
    }
  };
  std::vector<std::jthread> others;
  for (std::size_t t = 1; t < std::min<std::size_t>(threads, jobs); ++t) others.emplace_back(work, false);
  work(true);
}

}  // namespace kvd::cmd
