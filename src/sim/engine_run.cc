#include "sim/engine_run.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "sim/adaptive_eviction.h"

namespace kvd::sim {

double EngineRun::overhead_s() const noexcept {
  double sum = copies_alone_s;
  for (const PassRecord& pass : passes) sum += pass.resumed ? pass.seconds : pass.swap_out_s;
  return sum;
}

namespace {

constexpr double kLittleErrorMax = 0.01;

// What every run must hold. Walks beside the scheduler with books of its own: how far each request's tokens have been
// computed, and when it left.
class RunChecks {
 public:
  explicit RunChecks(std::size_t requests) : reached_(requests) {}

  // The scheduler has decided the pass; it and its copies take from `begin_s` to `end_s`.
  void pass(const sched::Scheduler& scheduler, const sched::Pass& pass, double begin_s, double end_s) {
    const std::size_t present = present_in(scheduler);
    leave(reached_.size() - present, begin_s);  // rejected just now
    present_s_ += static_cast<double>(present) * (end_s - begin_s);
    std::size_t finished = 0;
    for (const sched::Item& item : pass.items) {
      std::uint32_t& reached = reached_[item.request];
      KVD_CHECK(item.tokens > 0 && item.context <= reached);
      reached = std::max(reached, item.context + item.tokens);
      if (reached == to_compute(scheduler.request(item.request))) ++finished;
    }
    leave(left_ + finished, end_s);
  }

  // Returns the error of Little's law.
  double finish(const sched::Scheduler& scheduler, double end_s) {
    leave(reached_.size() - present_in(scheduler), end_s);
    KVD_CHECK(left_ == reached_.size());
    for (std::size_t i = 0; i < reached_.size(); ++i) {
      const sched::Request& r = scheduler.requests()[i];
      if (r.state == sched::State::kRejected) continue;
      KVD_CHECK(r.state == sched::State::kFinished && r.generated == r.output && reached_[i] == to_compute(r));
    }
    KVD_CHECK(scheduler.pool().used() == 0 && scheduler.host_used() == 0);
    const double error = latency_s_ > 0 ? std::fabs(present_s_ - latency_s_) / latency_s_ : 0;
    KVD_CHECK(error < kLittleErrorMax);
    return error;
  }

 private:
  static std::size_t present_in(const sched::Scheduler& scheduler) {
    return scheduler.waiting().size() + scheduler.running().size() + scheduler.swapped().size() +
           scheduler.arriving().size();
  }
  // The last token of the answer is made, and not computed again.
  static std::uint32_t to_compute(const sched::Request& r) { return r.prompt + r.output - 1; }
  void leave(std::size_t left, double time_s) {
    KVD_CHECK(left >= left_ && left <= reached_.size());
    latency_s_ += static_cast<double>(left - left_) * time_s;
    left_ = left;
  }

  std::vector<std::uint32_t> reached_;  // tokens of each request that have been computed
  std::size_t left_ = 0;                // requests that have finished or were rejected
  double present_s_ = 0;                // requests that the scheduler has, over time
  double latency_s_ = 0;                // of those that left; all came at time 0
};

}  // namespace

EngineRun run_engine(const sched::Config& config, std::span<const Lengths> requests, const EngineCosts& costs) {
  EvictionPlan plan(costs);
  Engine engine(plan.planned(config), requests, costs);
  EngineRun run;
  RunChecks checks(requests.size());
  for (;;) {
    plan.before_pass(engine);
    const double begin_s = engine.seconds();
    const sched::Pass* const pass = engine.begin();
    if (pass == nullptr) break;
    const PassRecord& record = engine.record();
    checks.pass(engine.scheduler(), *pass, begin_s, record.end_s);
    if (!pass->items.empty()) {
      run.passes.push_back(record);
    } else if (!engine.waits()) {
      run.copies_alone_s += record.seconds;
    }
    engine.end(*pass);
  }
  const sched::Scheduler& scheduler = engine.scheduler();
  for (const sched::Request& r : scheduler.requests()) {
    if (r.state == sched::State::kFinished) run.tokens += r.prompt + r.output;
    if (r.state == sched::State::kRejected) ++run.rejected;
  }
  run.seconds = engine.seconds();
  run.little_error = checks.finish(scheduler, run.seconds);
  run.counts = scheduler.counts();
  run.itl_s = engine.gaps();
  return run;
}

}  // namespace kvd::sim
