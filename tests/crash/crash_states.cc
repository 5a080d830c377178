// Enumerates the states in which a store's drive may be after a crash, and lets the store recover from each of them.
//
//   kvd_crash_states --seconds 60              as many states as a minute allows, from seed 1 on
//   kvd_crash_states --states 20000000         so many distinct ones
//   kvd_crash_states --replay 3.1/57:p:12      one state again, as a failure prints it
//
// Exit status 1 when something was wrong. docs/testing.md says what is enumerated and what is not.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <new>
#include <thread>

#include <fmt/format.h>
#include <malloc.h>

#include "base/check.h"
#include "crash/command_line.h"
#include "crash/explorer.h"
#include "store/testing/store_kit.h"

namespace kvd::crash {
namespace {

constexpr std::uint64_t kStatesMax = 4'000'000;  // of a run that is limited by time: 64 MiB of hashes

struct Options {
  double seconds = 0;
  std::uint64_t states = 0;
  std::uint64_t seed = 1;
  unsigned workers = 0;
  std::string replay;
};

// A store is made and thrown away thousands of times a second: no huge pages to be zeroed, no memory to be given back.
void settle_process() {
  ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

// The lock files of the stores need no disk.
std::filesystem::path folder() {
  std::error_code error;
  if (std::filesystem::is_directory("/dev/shm", error)) return "/dev/shm";
  return std::filesystem::temp_directory_path();
}

int replay(const Options& options, const std::string& dir) {
  const auto path = Path::parse(options.replay);
  if (!path) {
    fmt::print(stderr, "--replay: not a path of states: {}\n", options.replay);
    return 2;
  }
  const auto tally = std::make_unique<Tally>();
  StateSet seen(1);
  const auto wrong = Explorer(dir, *tally, seen, {.end = {}, .states = 0}, 0).replay(*path);
  for (const std::string& line : wrong) fmt::print("{}: {}\n", options.replay, line);
  if (wrong.empty()) fmt::print("{}: nothing is wrong\n", options.replay);
  return wrong.empty() ? 0 : 1;
}

void print(const Options& options, const Tally& tally, double seconds) {
  fmt::print(
      "{} distinct states in {:.1f} s ({:.0f}/s): {} of workloads ({} phases, seeds {} to {}), {} of recoveries;\n"
      "{} after power loss, {} with torn writes; {} repeated states skipped.\n"
      "{} times a promised record was there, {} times a version had to be gone.\n",
      tally.distinct.load(), seconds, static_cast<double>(tally.distinct) / seconds, tally.in_workload.load(),
      tally.workloads.load(), options.seed, tally.seed_next - 1, tally.in_recovery.load(), tally.power.load(),
      tally.torn.load(), tally.repeated.load(), tally.promises.load(), tally.forbidden.load());
  for (std::size_t i = 0; i < std::min<std::size_t>(tally.failures, Tally::kFailuresKept); ++i) {
    const std::string line = tally.lines[i].data();
    fmt::print("WRONG {}\n  again: kvd_crash_states --replay {}\n", line, line.substr(0, line.find(": ")));
  }
}

// Waits for the workers; whether all of them ended by themselves.
bool join(const std::vector<pid_t>& workers, const Tally& tally) {
  bool well = true;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    int status = 0;
    ::waitpid(workers[i], &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    well = false;
    fmt::print("WRONG {}: the store died there\n  again: kvd_crash_states --replay {}\n", tally.at[i].data(),
               tally.at[i].data());
  }
  return well;
}

int enumerate(const Options& options, const std::string& dir) {
  void* memory = ::mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  KVD_CHECK(memory != MAP_FAILED);
  Tally& tally = *new (memory) Tally;
  tally.seed_next = options.seed;
  StateSet seen(options.states > 0 ? options.states : kStatesMax);
  const auto began = std::chrono::steady_clock::now();
  const auto limit = options.seconds > 0 ? std::chrono::duration<double>(options.seconds) : std::chrono::hours(100'000);
  const Limits limits{.end = began + std::chrono::duration_cast<std::chrono::steady_clock::duration>(limit),
                      .states = options.states};
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const unsigned count = std::min<unsigned>(options.workers > 0 ? options.workers : cores, Tally::kWorkersMax);
  std::vector<pid_t> workers;
  for (unsigned i = 0; i < count; ++i) {
    const std::string own = fmt::format("{}/{}", dir, i);
    std::filesystem::create_directory(own);
    workers.push_back(::fork());
    KVD_CHECK(workers.back() >= 0);
    if (workers.back() > 0) continue;
    Explorer explorer(own, tally, seen, limits, i);
    while (!explorer.over()) explorer.explore(tally.seed_next++);
    ::_exit(0);
  }
  const bool well = join(workers, tally);
  print(options, tally, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  return well && tally.failures == 0 ? 0 : 1;
}

int run(int argc, char** argv) {
  Options options;
  CommandLine words("Enumerates crash states of a store");
  words.add("--seconds", options.seconds, "time to spend; 0 = no limit");
  words.add("--states", options.states, "distinct states to end at; 0 = no limit");
  words.add("--seed", options.seed, "of the first workload");
  words.add("--workers", options.workers, "processes; 0 = as many as cores");
  words.add("--replay", options.replay, "one state, as a failure prints it");
  if (const auto status = words.parse(argc, argv)) return *status;
  if (options.replay.empty() && options.seconds <= 0 && options.states == 0) options.seconds = 60;
  settle_process();
  const store::TempDir dir(folder().string());
  return options.replay.empty() ? enumerate(options, dir.path()) : replay(options, dir.path());
}

}  // namespace
}  // namespace kvd::crash

int main(int argc, char** argv) { return kvd::crash::run(argc, argv); }
