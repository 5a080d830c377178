// One engine under a virtual clock: a scheduler (sched/scheduler.h) whose passes take the time of the step model. What
// the study's end-to-end experiments are made of. Pure and deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/step_time.h"
#include "sched/scheduler.h"

namespace kvd::sim {

struct Lengths {
  std::uint32_t prompt = 0;
  std::uint32_t output = 0;
};

// What passes and copies of an engine cost.
struct EngineCosts {
  model::StepTime step;
  model::SwapTime swap;
  double block_bytes = 0;
  double copies_per_block = 0;  // layers * 2 (K and V)
  bool fresh = false;           // the process has just started: its first passes pay the warm-up
  // The study's open opportunities, beside those of sched::Config:
  bool gathered = false;     // a request's blocks are gathered on the device and moved in one copy
  double gather_byte_s = 0;  // reading and writing device memory once
  bool track_itl = false;    // keep the gaps between a request's tokens
};

struct PassRecord {
  double end_s = 0;
  double seconds = 0;  // of the pass with the copies that it waits for
  std::uint32_t tokens = 0;
  bool resumed = false;  // holds a request that comes back from a preemption
  double swap_out_s = 0;
  std::uint32_t gpu_blocks = 0;  // in use while it ran
  std::uint32_t host_blocks = 0;
};

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

// Seconds to move `blocks` of `requests` requests one way.
double copy_seconds(const EngineCosts& costs, double blocks, double requests) noexcept;

// What the step model is asked for a pass.
model::PassShape pass_shape(const sched::Pass& pass, sched::Batching batching) noexcept;

// Sends all requests at time 0, in their order, and runs until none is left. With async_swap copies run on a stream of
// their own, one after the other at full speed, and passes are not slowed down by them. The run checks itself: a
// request's tokens are computed in order, each request that is not rejected gets all that it asked for, nothing holds
// blocks at the end, and Little's law holds within 1 %. One that breaks any of this ends the program (base/check.h).
EngineRun run_engine(const sched::Config& config, std::span<const Lengths> requests, const EngineCosts& costs);

}  // namespace kvd::sim
