#include "sim/engine_run.h"

#include <algorithm>
#include <deque>

#include "base/check.h"

namespace kvd::sim {

double EngineRun::overhead_s() const noexcept {
  double sum = 0;
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
  TokenGaps gaps(requests.size());
  CopyStream copies_beside(costs);
  double warmup_left = costs.fresh ? costs.step.warmup_max_s : 0;
  while (!scheduler.idle()) {
    const sched::Pass& pass = scheduler.schedule();
    copies_beside.begin(scheduler, run.seconds);
    if (pass.items.empty() && !copies_beside.empty()) {  // everybody waits for a copy
      run.seconds = std::max(run.seconds, copies_beside.next_s());
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
    run.seconds += record.seconds;
    record.end_s = run.seconds;
    if (costs.track_itl) gaps.pass(scheduler, pass, run.seconds, run.itl_s);
    if (!pass.items.empty()) run.passes.push_back(record);
    scheduler.complete();
    copies_beside.settle(scheduler, run.seconds);
  }
  for (const sched::Request& r : scheduler.requests()) {
    if (r.state == sched::State::kFinished) run.tokens += r.prompt + r.output;
    if (r.state == sched::State::kRejected) ++run.rejected;
  }
  run.counts = scheduler.counts();
  return run;
}

}  // namespace kvd::sim
