#include "sim/engine_run.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "base/check.h"

namespace kvd::sim {

double EngineRun::overhead_s() const noexcept {
  double sum = copies_alone_s;
  for (const PassRecord& pass : passes) sum += pass.resumed ? pass.seconds : pass.swap_out_s;
  return sum;
}

double copy_seconds(const EngineCosts& costs, double blocks, double requests) noexcept {
  if (blocks <= 0) return 0;
  if (!costs.gathered) return costs.swap.seconds(blocks, costs.copies_per_block, costs.block_bytes);
  const double bytes = blocks * costs.block_bytes;
  return requests * costs.swap.copy_s + bytes * (costs.swap.byte_s + costs.gather_byte_s);
}

model::PassShape pass_shape(const sched::Pass& pass, sched::Batching batching) noexcept {
  model::PassShape shape;
  shape.chunked = batching == sched::Batching::kChunked;
  for (const sched::Item& item : pass.items) {
    const double tokens = item.tokens;
    if (item.prefill) {
      shape.prefill_tokens += tokens;
      shape.prefill_seqs += 1;
      shape.new_pairs += tokens * tokens / 2;
      shape.context_pairs += tokens * item.context;
      if (item.context > 0) shape.chunked = true;  // only that kernel attends to the cache
    } else {
      shape.decode_seqs += 1;
      shape.decode_context += item.context;
    }
  }
  return shape;
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

// The gaps between each request's tokens: a pass that completes a sequence gives it one.
class TokenGaps {
 public:
  explicit TokenGaps(std::size_t requests) : last_(requests, -1) {}
  void pass(const sched::Scheduler& scheduler, const sched::Pass& pass, double end_s, std::vector<float>& gaps) {
    for (const sched::Item& item : pass.items) {
      if (item.context + item.tokens < scheduler.request(item.request).length()) continue;
      double& last = last_[item.request];
      if (last >= 0) gaps.push_back(static_cast<float>(end_s - last));
      last = end_s;
    }
  }

 private:
  std::vector<double> last_;
};

// When the copies beside the passes are done: each begins when it is decided or when the one before it ends.
class CopyStream {
 public:
  explicit CopyStream(const EngineCosts& costs) : costs_(costs) {}
  // Begins what the scheduler has decided `now`.
  void begin(const sched::Scheduler& scheduler, double now_s) {
    for (std::size_t i = ends_.size(); i < scheduler.copies().size(); ++i) {
      free_at_s_ = std::max(free_at_s_, now_s) + copy_seconds(costs_, scheduler.copies()[i].blocks, 1);
      ends_.push_back(free_at_s_);
    }
  }
  [[nodiscard]] bool empty() const noexcept { return ends_.empty(); }
  [[nodiscard]] double next_s() const noexcept { return ends_.front(); }
  // Tells the scheduler what is done by `now`.
  void settle(sched::Scheduler& scheduler, double now_s) {
    for (; !ends_.empty() && ends_.front() <= now_s; ends_.pop_front()) scheduler.copied();
  }

 private:
  const EngineCosts& costs_;
  std::deque<double> ends_;  // of the scheduler's copies(), in their order
  double free_at_s_ = 0;
};

}  // namespace

EngineRun run_engine(const sched::Config& config, std::span<const Lengths> requests, const EngineCosts& costs) {
  sched::Scheduler scheduler(config);
  for (const Lengths& r : requests) scheduler.add(r.prompt, r.output);
  EngineRun run;
  RunChecks checks(requests.size());
  TokenGaps gaps(requests.size());
  CopyStream copies_beside(costs);
  double warmup_left = costs.fresh ? costs.step.warmup_max_s : 0;
  while (!scheduler.idle()) {
    const sched::Pass& pass = scheduler.schedule();
    copies_beside.begin(scheduler, run.seconds);
    if (pass.items.empty() && !copies_beside.empty()) {  // everybody waits for a copy
      const double begin_s = run.seconds;
      run.seconds = std::max(begin_s, copies_beside.next_s());
      checks.pass(scheduler, pass, begin_s, run.seconds);
      copies_beside.settle(scheduler, run.seconds);
      continue;
    }
    if (pass.items.empty()) {
      if (scheduler.idle()) break;
      // Only a preemption of the last runner leaves an empty pass; the next one takes it back or rejects it.
      KVD_CHECK(scheduler.running().empty());
    }
    PassRecord record;
    record.tokens = pass.tokens;
    record.seconds = costs.step.seconds(pass_shape(pass, config.batching), warmup_left);
    if (!config.async_swap) {
      record.swap_out_s = copy_seconds(costs, pass.blocks_out, pass.requests_out);
      record.seconds += record.swap_out_s + copy_seconds(costs, pass.blocks_in, pass.requests_in);
    }
    for (const sched::Item& item : pass.items) record.resumed |= item.resumed;
    record.gpu_blocks = scheduler.pool().used();
    record.host_blocks = scheduler.host_used();
    record.end_s = run.seconds + record.seconds;
    checks.pass(scheduler, pass, run.seconds, record.end_s);
    run.seconds = record.end_s;
    if (costs.track_itl) gaps.pass(scheduler, pass, run.seconds, run.itl_s);
    if (pass.items.empty()) {
      run.copies_alone_s += record.seconds;
    } else {
      run.passes.push_back(record);
    }
    scheduler.complete();
    copies_beside.settle(scheduler, run.seconds);
  }
  for (const sched::Request& r : scheduler.requests()) {
    if (r.state == sched::State::kFinished) run.tokens += r.prompt + r.output;
    if (r.state == sched::State::kRejected) ++run.rejected;
  }
  run.little_error = checks.finish(scheduler, run.seconds);
  run.counts = scheduler.counts();
  return run;
}

}  // namespace kvd::sim
