// The study's open opportunities against recomputation and swapping, on all settings of its figures 9 and 10: partial
// eviction, a choice between both for each run by looking ahead, asynchronous swapping, gathered copies, selective
// chunking. Pure.
//
// Compared with common random numbers: seed n shuffles the order of the requests, and every arm sees the same orders.
// Requests of one length have no order: these settings are run once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/interval.h"
#include "sim/study.h"

namespace kvd::sim {

// One way of evicting in one setting, over all seeds. "The better of both" is that of recompute and swap with the same
// seed, for each measure by itself; for arms with pageable host memory that of recompute and swap, pageable.
struct OpportunityRow {
  std::string setting;  // "10a 6 GiB"
  std::string label;    // of its place in a chart: "6 GiB"
  bool fixed = false;   // all requests have the same length
  std::string arm;      // "recompute", "swap", "adaptive", ...
  std::uint32_t seeds = 0;
  Interval makespan_s;
  Interval itl_p99_s;      // 99th percentile of the gaps between a request's tokens, of all requests
  Interval makespan_gain;  // 1 - makespan / the better of both
  Interval itl_p99_gain;
  double worst_makespan = 0;  // largest makespan / the better of both, over the seeds
  double worst_itl_p99 = 0;
  double recomputes = 0;  // preemptions of each kind, mean over the seeds
  double swaps = 0;
  double little_error = 0;  // of its runs at most (sim/engine_run.h)
};

// Settings that there are; each is independent of the others.
std::size_t opportunity_settings() noexcept;
// Where a request of the inputs' lists may be turned away in a setting, with the arithmetic; empty if nowhere.
[[nodiscard]] std::string opportunities_fault(const StudyInputs& inputs);
// All arms of setting number `setting` < opportunity_settings(). Requires seeds >= 2, and inputs without a
// fault.
std::vector<OpportunityRow> opportunities(const model::StudyFit& fit, const StudyInputs& inputs, std::size_t setting,
                                          std::uint32_t seeds);

}  // namespace kvd::sim
