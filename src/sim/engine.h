// One engine under a virtual clock, pass by pass: a scheduler (sched/scheduler.h) whose passes take the time of the
// step model. A value: a copy goes on by itself from where the engine stands. Pure and deterministic; one owner, no
// locking.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
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

// Seconds to move `blocks` of `requests` requests one way.
double copy_seconds(const EngineCosts& costs, double blocks, double requests) noexcept;

// What the step model is asked for a pass.
model::PassShape pass_shape(const sched::Pass& pass, sched::Batching batching) noexcept;

// 99th percentile of gaps between tokens, in seconds; 0 without any.
double itl_p99(std::vector<float> gaps);

// The gaps between each request's tokens: a pass that completes a sequence gives it one.
class TokenGaps {
 public:
  explicit TokenGaps(std::size_t requests) : last_(requests, -1) {}
  void pass(const sched::Scheduler& scheduler, const sched::Pass& pass, double end_s);
  [[nodiscard]] const std::vector<float>& seconds() const noexcept { return gaps_; }

 private:
  std::vector<double> last_;
  std::vector<float> gaps_;  // of all requests
};

// When the copies beside the passes are done: each begins when it is decided or when the one before it ends.
class CopyStream {
 public:
  // Begins what the scheduler has decided `now`.
  void begin(const EngineCosts& costs, const sched::Scheduler& scheduler, double now_s);
  [[nodiscard]] bool empty() const noexcept { return ends_.empty(); }
  [[nodiscard]] double next_s() const noexcept { return ends_.front(); }
  // Tells the scheduler what is done by `now`.
  void settle(sched::Scheduler& scheduler, double now_s);

 private:
  std::deque<double> ends_;  // of the scheduler's copies(), in their order
  double free_at_s_ = 0;
};

class Engine {
 public:
  // All requests come at time 0, in their order. `costs` outlives the engine and its copies.
  Engine(const sched::Config& config, std::span<const Lengths> requests, const EngineCosts& costs);
  Engine(const sched::Config& config, std::span<const Lengths> requests, EngineCosts&& costs) = delete;

  // Decides and times the next pass, or the wait for a copy where nobody can run (a pass without items); null when
  // nobody is left. The pass is valid until end().
  const sched::Pass* begin();
  // What begin() decided is over.
  void end(const sched::Pass& pass);
  // A copy that goes on as sched::Scheduler::suppose() says. Between end() and begin().
  [[nodiscard]] Engine supposing(std::function<bool(const sched::Victim&)> prefers_swap) const;

  [[nodiscard]] const sched::Scheduler& scheduler() const noexcept { return scheduler_; }
  [[nodiscard]] double seconds() const noexcept { return seconds_; }
  // Of what begin() decided; of a wait, only its end.
  [[nodiscard]] const PassRecord& record() const noexcept { return record_; }
  // Whether begin() found nobody who could run before a copy is done.
  [[nodiscard]] bool waits() const noexcept { return waits_; }
  // Gaps between tokens so far; where asked for.
  [[nodiscard]] const std::vector<float>& gaps() const noexcept { return gaps_.seconds(); }

 private:
  const EngineCosts* costs_;
  sched::Scheduler scheduler_;
  TokenGaps gaps_;
  CopyStream copies_beside_;
  PassRecord record_;
  double seconds_ = 0;
  double warmup_left_ = 0;
  bool waits_ = false;
};

}  // namespace kvd::sim
