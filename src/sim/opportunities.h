// The study's open opportunities against recomputation and swapping, on the settings of its figures 9 and 10: partial
// eviction, the choice between both per request, asynchronous swapping, gathered copies. Pure.
//
// Compared with common random numbers: seed n shuffles the order of the requests, and every arm sees the same orders.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/interval.h"
#include "sim/study.h"

namespace kvd::sim {

// One way of evicting in one setting, over all seeds.
struct OpportunityRow {
  std::string setting;  // "10a 6 GiB"
  std::string arm;      // "recompute", "swap", "adaptive", ...
  Interval makespan_s;
  Interval itl_p99_s;
  Interval makespan_gain;  // 1 - makespan / the better of recompute and swap with the same seed
  Interval itl_p99_gain;
  double worst_makespan = 0;  // largest makespan / the better of both, over the seeds
};

// All settings and arms. Requires seeds >= 2.
std::vector<OpportunityRow> opportunities(const model::StudyFit& fit, const StudyInputs& inputs, std::uint32_t seeds);

}  // namespace kvd::sim
