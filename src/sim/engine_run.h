// A whole run of one engine (engine.h), checked. What the study's end-to-end experiments are made of. Pure and
// deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sched/scheduler.h"
#include "sim/engine.h"

namespace kvd::sim {

struct EngineRun {
  std::vector<PassRecord> passes;
  double seconds = 0;
  double copies_alone_s = 0;  // swap-out copies of steps that held no pass; part of `seconds` and of no record
  std::uint64_t tokens = 0;   // prompt and output tokens of the requests that finished
  std::uint64_t rejected = 0;
  double little_error = 0;  // relative difference of both sides of Little's law
  sched::Counts counts;
  std::vector<float> itl_s;  // gaps between tokens of a request, of all requests; where asked for

  [[nodiscard]] double tokens_per_s() const noexcept { return static_cast<double>(tokens) / seconds; }
  // The study's overhead: whole durations of passes with a resumed request, and the swap-out copies of the others.
  [[nodiscard]] double overhead_s() const noexcept;
};

// Sends all requests at time 0, in their order, and runs until none is left. With async_swap copies run on a stream of
// their own, one after the other at full speed, and passes are not slowed down by them. The run checks itself: a
// request's tokens are computed in order, each request that is not rejected gets all that it asked for, nothing holds
// blocks at the end, and Little's law holds within 1 %. One that breaks any of this ends the program (base/check.h).
EngineRun run_engine(const sched::Config& config, std::span<const Lengths> requests, const EngineCosts& costs);

}  // namespace kvd::sim
