// Explorer: stops a machine at every step of what its store writes, in many variants, lets the store recover from each
// state and judges what is found; recovery itself is stopped again in the same way.
//
// One explorer per process: workers are forked, because threads would wait for each other in the kernel (every state
// maps and unmaps memory). What they share, Tally and the set of states, lies in shared memory.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "crash/machine.h"
#include "crash/variants.h"

namespace kvd::crash {

// Which states have been seen, by their hash: open addressing, 8 bytes a slot, of a fixed size. Any process.
class StateSet {
 public:
  // Room for at least so many.
  explicit StateSet(std::uint64_t states);
  ~StateSet();
  StateSet(const StateSet&) = delete;
  StateSet& operator=(const StateSet&) = delete;
  // False when it was there.
  bool insert(std::uint64_t hash) noexcept;
  [[nodiscard]] std::uint64_t capacity() const noexcept { return slots_count_ / 10 * 7; }

 private:
  std::uint64_t slots_count_;
  std::atomic<std::uint64_t>* slots_;  // 0 = free; shared memory
};

// One stop of a machine: after so many events of the journal, in this way, this variant.
struct Stop {
  std::uint32_t position = 0;
  Crash how = Crash::kKill;
  std::uint32_t variant = 0;
};

// How a state came about, and how it comes about again: `SEED.PHASE/POSITION:k|p:VARIANT/...`.
struct Path {
  std::uint64_t seed = 0;
  std::uint32_t phase = 0;
  std::vector<Stop> stops{};
  [[nodiscard]] std::string text() const;
  static std::optional<Path> parse(const std::string& text);
};

// Counts of all workers; lies in shared memory.
struct Tally {
  static constexpr std::size_t kFailuresKept = 8;
  static constexpr std::size_t kWorkersMax = 64;
  std::atomic<std::uint64_t> distinct = 0, repeated = 0;
  std::atomic<std::uint64_t> in_workload = 0, in_recovery = 0;  // of the distinct ones: where the machine stopped
  std::atomic<std::uint64_t> torn = 0, power = 0;  // of the distinct ones: with a torn write, by power loss
  std::atomic<std::uint64_t> promises = 0;         // records that had to be there
  std::atomic<std::uint64_t> forbidden = 0;        // versions that had to be gone
  std::atomic<std::uint64_t> workloads = 0, seed_next = 0;
  std::atomic<std::uint32_t> failures = 0;
  std::array<std::array<char, 400>, kFailuresKept> lines{};  // of the first failures
  std::array<std::array<char, 200>, kWorkersMax> at{};       // what each worker is doing, should it die

  void fail(const Path& path, const std::vector<std::string>& wrong);
};

// When to stop: all are ends.
struct Limits {
  std::chrono::steady_clock::time_point end;
  std::uint64_t states = 0;  // distinct ones; 0 = any number
};

class Explorer {
 public:
  static constexpr std::uint32_t kPhases = 4;       // a workload runs, is stopped, and goes on, so many times
  static constexpr std::uint32_t kPhasesOfTwo = 2;  // ... of two devices

  Explorer(std::string dir, Tally& tally, StateSet& seen, const Limits& limits, std::size_t worker)
      : machine_(std::move(dir)), tally_(tally), seen_(seen), limits_(limits), worker_(worker) {}

  // Whether the limits are reached or enough has failed.
  [[nodiscard]] bool over() const;
  // Everything of one workload, as far as the limits allow.
  void explore(std::uint64_t seed);
  // One state again; what is wrong with it.
  std::vector<std::string> replay(const Path& path);

 private:
  void tell(const Path& path);
  // `opening`: also before the writes by which the opening marks itself.
  void sweep(const Start& start, const Journal& journal, Path& path, const Found* parent, bool opening);
  void visit(const Stopped& stopped, const Path& path, const Found* parent);
  // What is wrong with what was found.
  std::vector<std::string> judge(const Found& found, const Oracle& after);
  // Recovery that is stopped and repeated finds what it found before.
  static void compare(const Found& found, const Oracle& after, const Found& parent, std::vector<std::string>& wrong);
  [[nodiscard]] static Stop last_stop(std::uint64_t seed, std::uint32_t phase, const Journal& journal);

  Machine machine_;
  Tally& tally_;
  StateSet& seen_;
  const Limits limits_;
  const std::size_t worker_;
};

}  // namespace kvd::crash
