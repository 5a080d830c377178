#include "sim/adaptive_eviction.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvd::sim {

Stall swap_stall(const EngineCosts& costs, bool async_swap, const sched::Victim& victim) {
  if (!async_swap) return {2 * copy_seconds(costs, victim.blocks, 1), 2};
  const double out = copy_seconds(costs, static_cast<double>(victim.copying) + victim.blocks, 1);
  model::PassShape decodes;
  decodes.decode_seqs = victim.others;
  const double late = std::max(0.0, out - costs.step.seconds(decodes));
  return {late, late > 0 ? 1 : 0};
}

Stall recompute_stall(const EngineCosts& costs, const sched::Victim& victim) {
  model::PassShape without;
  without.prefill_tokens = static_cast<double>(victim.again_tokens);
  without.prefill_seqs = victim.again_seqs;
  without.new_pairs = victim.again_pairs;
  without.chunked = victim.context > 0;  // only that kernel attends to the cache
  const double tokens = victim.tokens;
  model::PassShape with = without;
  with.prefill_tokens += tokens;
  with.prefill_seqs += 1;
  with.new_pairs += tokens * tokens / 2;
  with.context_pairs += tokens * victim.context;
  const double alone = victim.again_seqs == 0 ? 0 : costs.step.seconds(without);
  return {costs.step.seconds(with) - alone, victim.again_seqs == 0 ? 1 : 0};
}

bool prefers_swap(const EngineCosts& costs, bool async_swap, const sched::Victim& victim) {
  const Stall swap = swap_stall(costs, async_swap, victim);
  const Stall again = recompute_stall(costs, victim);
  const bool unseen = victim.disturbed <= kTailShare;
  if (unseen && victim.others > 0 && swap.times != again.times) return swap.times < again.times;
  return swap.seconds < again.seconds;
}

bool swap_stalls_shorter(const EngineCosts& costs, bool async_swap, const sched::Victim& victim) {
  const Stall swap = swap_stall(costs, async_swap, victim);
  return swap.seconds / std::max(1, swap.times) < recompute_stall(costs, victim).seconds;
}

std::size_t best_of(std::span<const Outlook> outlooks) {
  KVD_CHECK(outlooks.size() >= 2);
  const double seconds = std::min(outlooks[0].seconds, outlooks[1].seconds);
  const double itl_p99_s = std::min(outlooks[0].itl_p99_s, outlooks[1].itl_p99_s);
  std::size_t best = 0;
  std::pair<double, double> least;  // beyond the limit, product
  for (std::size_t i = 0; i < outlooks.size(); ++i) {
    const double longer = outlooks[i].seconds / seconds;
    const double later = itl_p99_s > 0 ? outlooks[i].itl_p99_s / itl_p99_s : 1;
    const std::pair<double, double> rank{std::max({longer, later, kWorseAtMost}), longer * later};
    if (i > 0 && rank >= least) continue;
    least = rank;
    best = i;
  }
  return best;
}

sched::Config EvictionPlan::planned(sched::Config config) {
  if (config.eviction != sched::Eviction::kAdaptive || config.prefers_swap) return config;
  KVD_CHECK(costs_.track_itl);
  asked_ = true;
  async_swap_ = config.async_swap;
  config.prefers_swap = [this](const sched::Victim& victim) { return swaps(way_, victim); };
  return config;
}

bool EvictionPlan::swaps(std::size_t way, const sched::Victim& victim) const {
  if (way == kByStalls) return prefers_swap(costs_, async_swap_, victim);
  if (way == kByLongest) return swap_stalls_shorter(costs_, async_swap_, victim);
  return way == kSwap;
}

void EvictionPlan::before_pass(const Engine& engine) {
  const sched::Scheduler& scheduler = engine.scheduler();
  if (!asked_ || looked_) return;
  if (scheduler.pool().free() >= scheduler.running().size()) return;  // a block for everybody
  std::array<Outlook, kWays> outlooks;
  for (std::size_t way = 0; way < kWays; ++way) {
    Engine ahead = engine.supposing([this, way](const sched::Victim& victim) { return swaps(way, victim); });
    while (const sched::Pass* const pass = ahead.begin()) ahead.end(*pass);
    outlooks.at(way) = {ahead.seconds(), itl_p99(ahead.gaps())};
  }
  way_ = best_of(outlooks);
  looked_ = true;
}

}  // namespace kvd::sim
