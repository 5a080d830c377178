#include "sim/engine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvd::sim {

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

double itl_p99(std::vector<float> gaps) {
  if (gaps.empty()) return 0;
  const auto rank = gaps.begin() + static_cast<std::ptrdiff_t>(0.99 * static_cast<double>(gaps.size()));
  std::ranges::nth_element(gaps, rank);
  return static_cast<double>(*rank);
}

void TokenGaps::pass(const sched::Scheduler& scheduler, const sched::Pass& pass, double end_s) {
  for (const sched::Item& item : pass.items) {
    if (item.context + item.tokens < scheduler.request(item.request).length()) continue;
    double& last = last_[item.request];
    if (last >= 0) gaps_.push_back(static_cast<float>(end_s - last));
    last = end_s;
  }
}

void CopyStream::begin(const EngineCosts& costs, const sched::Scheduler& scheduler, double now_s) {
  for (std::size_t i = ends_.size(); i < scheduler.copies().size(); ++i) {
    free_at_s_ = std::max(free_at_s_, now_s) + copy_seconds(costs, scheduler.copies()[i].blocks, 1);
    ends_.push_back(free_at_s_);
  }
}

void CopyStream::settle(sched::Scheduler& scheduler, double now_s) {
  for (; !ends_.empty() && ends_.front() <= now_s; ends_.pop_front()) scheduler.copied();
}

Engine::Engine(const sched::Config& config, std::span<const Lengths> requests, const EngineCosts& costs)
    : costs_(&costs), scheduler_(config), gaps_(requests.size()) {
  for (const Lengths& r : requests) scheduler_.add(r.prompt, r.output);
  warmup_left_ = costs.fresh ? costs.step.warmup_max_s : 0;
}

const sched::Pass* Engine::begin() {
  if (scheduler_.idle()) return nullptr;
  const sched::Pass& pass = scheduler_.schedule();
  copies_beside_.begin(*costs_, scheduler_, seconds_);
  record_ = {};
  waits_ = pass.items.empty() && !copies_beside_.empty();
  if (waits_) {
    record_.end_s = std::max(seconds_, copies_beside_.next_s());
    return &pass;
  }
  if (pass.items.empty()) {
    if (scheduler_.idle()) return nullptr;
    // Only a preemption of the last runner leaves an empty pass; the next one takes it back or rejects it.
    KVD_CHECK(scheduler_.running().empty());
  }
  const sched::Config& config = scheduler_.config();
  record_.tokens = pass.tokens;
  record_.seconds = costs_->step.seconds(pass_shape(pass, config.batching), warmup_left_);
  if (!config.async_swap) {
    record_.swap_out_s = copy_seconds(*costs_, pass.blocks_out, pass.requests_out);
    record_.seconds += record_.swap_out_s + copy_seconds(*costs_, pass.blocks_in, pass.requests_in);
  }
  for (const sched::Item& item : pass.items) record_.resumed |= item.resumed;
  record_.gpu_blocks = scheduler_.pool().used();
  record_.host_blocks = scheduler_.host_used();
  record_.end_s = seconds_ + record_.seconds;
  return &pass;
}

void Engine::end(const sched::Pass& pass) {
  seconds_ = record_.end_s;
  if (!waits_) {
    if (costs_->track_itl) gaps_.pass(scheduler_, pass, seconds_);
    scheduler_.complete();
  }
  copies_beside_.settle(scheduler_, seconds_);
}

Engine Engine::supposing(std::function<bool(const sched::Victim&)> prefers_swap) const {
  Engine supposed = *this;
  supposed.scheduler_.suppose(std::move(prefers_swap));
  return supposed;
}

}  // namespace kvd::sim
