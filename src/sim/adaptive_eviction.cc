#include "sim/adaptive_eviction.h"

#include <algorithm>

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

}  // namespace kvd::sim
