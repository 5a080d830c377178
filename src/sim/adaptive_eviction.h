// The choice between swapping a request out and computing it again (sched::Eviction::kAdaptive), by looking ahead: the
// engine plays out on copies of itself what would come of each way of choosing, and takes the best. Pure.
//
// Why not victim by victim: what a choice costs is decided by what comes behind it. A stall counts at the 99th
// percentile of inter-token latency only where more than 1 % of a run's tokens come late, which evictions and
// admissions far later decide; and victims that went different ways come back in another order than they left, which
// moves the end of a run by more than both ways differ.
//
// What is looked at is what an engine knows: its queues, what passes and copies take, and how many tokens each request
// asks for (max_tokens), all of which it gets. So what is played out is what happens, and one plan holds for the run.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "sim/engine.h"

namespace kvd::sim {

// The percentile of inter-token latency that is looked after: the one that is reported.
inline constexpr double kTailShare = 0.01;
// How much worse than the better of recomputation and swapping a plan may be in makespan or in the tail, for a gain in
// the other: the limit that the adaptive choice is held to.
inline constexpr double kWorseAtMost = 1.02;

// What the others wait for, were the victim preempted in one way.
struct Stall {
  double seconds = 0;
  int times = 0;
};

// Copies out and in before passes; with async_swap what the way out takes beyond a decode pass, as somebody sits out
// until then.
[[nodiscard]] Stall swap_stall(const EngineCosts& costs, bool async_swap, const sched::Victim& victim);
// The victim's share of the pass that computes it again, together with others that wait for the same.
[[nodiscard]] Stall recompute_stall(const EngineCosts& costs, const sched::Victim& victim);
// The choice of one victim by its stalls, one of the ways that are played out. While few tokens are late - fewer than a
// tail of 1 % would hold, counting prompts of others - a further stall is one that the percentile does not see, and the
// way with fewer of them is taken; beyond that the one with the shorter stall.
[[nodiscard]] bool prefers_swap(const EngineCosts& costs, bool async_swap, const sched::Victim& victim);
// Another one: the way whose longest single stall is the shorter, as where most of the tail are stalls.
[[nodiscard]] bool swap_stalls_shorter(const EngineCosts& costs, bool async_swap, const sched::Victim& victim);

// What would come of a way of choosing, over the whole run.
struct Outlook {
  double seconds = 0;
  double itl_p99_s = 0;
};
// Which of `outlooks` to follow; the first two are those of recomputing and of swapping everybody. Of those within
// kWorseAtMost of the better of these two in both measures, the one with the least product of both; if there is none,
// the one whose worse measure is the least.
[[nodiscard]] std::size_t best_of(std::span<const Outlook> outlooks);

class EvictionPlan {
 public:
  // `costs` outlives the plan, and the plan the engines whose configuration it made.
  explicit EvictionPlan(const EngineCosts& costs) : costs_(costs) {}
  EvictionPlan(const EvictionPlan&) = delete;
  EvictionPlan& operator=(const EvictionPlan&) = delete;

  // `config`, with kAdaptive and without a prefers_swap of its own asking this plan, which requires costs.track_itl.
  [[nodiscard]] sched::Config planned(sched::Config config);
  // Between two passes: looks ahead before the first one that may run short of blocks.
  void before_pass(const Engine& engine);

 private:
  enum Way : std::size_t { kRecompute, kSwap, kByStalls, kByLongest, kWays };

  [[nodiscard]] bool swaps(std::size_t way, const sched::Victim& victim) const;

  const EngineCosts& costs_;
  bool asked_ = false;  // by a scheduler
  bool async_swap_ = false;
  bool looked_ = false;
  std::size_t way_ = kSwap;
};

}  // namespace kvd::sim
