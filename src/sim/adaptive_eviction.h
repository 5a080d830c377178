// The choice between swapping a request out and computing it again, by the stall that each way imposes on the requests
// that go on running (sched::Eviction::kAdaptive). Pure.
//
// Seconds alone decide how long all of it takes, but not the tail of inter-token latency: a swap stalls the others
// twice, out and in, a recomputation once. While few tokens are late - fewer than a tail of 1 % would hold, counting
// prompts of others - every further stall is one that the 99th percentile does not see, and the way with fewer of them
// keeps it so; beyond that the percentile is a stall itself, and the shorter way is taken.
#pragma once

#include "sim/engine_run.h"

namespace kvd::sim {

// The percentile of inter-token latency that is looked after: the one that is reported.
inline constexpr double kTailShare = 0.01;

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
// For sched::Config::prefers_swap.
[[nodiscard]] bool prefers_swap(const EngineCosts& costs, bool async_swap, const sched::Victim& victim);

}  // namespace kvd::sim
