#include "model/closed_form.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace kvd::model {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// (query, key) pairs of the tokens from `from` to `to`, each with at most `window` keys. Tokens are counted as a
// continuum, as the talk does: a token at x attends to x others (causal) or to `to` (full).
double pairs(double from, double to, double window, Attention mode) {
  if (mode == Attention::kFull) return (to - from) * (window > 0 ? std::min(window, to) : to);
  if (window <= 0 || to <= window) return (to * to - from * from) / 2;
  const double ramp_end = std::max(from, window);
  const double ramp = from < window ? (window * window - from * from) / 2 : 0;
  return ramp + (to - ramp_end) * window;
}

// Seconds to compute the tokens from `from` to `to` of a prompt.
double compute_s(const Replica& replica, double from, double to) {
  double flops = (to - from) * replica.token_flops;
  for (const AttentionPart& part : replica.attention) {
    flops += part.pair_flops * pairs(from, to, part.window_tokens, replica.mode);
  }
  return flops / replica.flops_per_s + (to - from) * replica.reduce_token_s;
}

// a*: where reading the stored share takes as long as computing the rest. One side grows with a, the other falls.
double crossover(const Replica& replica, double prompt_tokens, double read_token_s) {
  double low = 0;
  double high = 1;
  for (int i = 0; i < 100; ++i) {
    const double a = (low + high) / 2;
    const bool compute_binds = a * prompt_tokens * read_token_s < compute_s(replica, a * prompt_tokens, prompt_tokens);
    (compute_binds ? low : high) = a;
  }
  return (low + high) / 2;
}

struct DepotTime {
  double seconds = 0;
  Bound bound = Bound::kCompute;
};

DepotTime depot_time(const Replica& replica, const Workload& workload, const StorePath& store) {
  const double stored = workload.reuse * workload.prompt_tokens;
  const double read = stored > 0 ? store.latency_s + stored * replica.kv_token_bytes / store.read_bytes_per_s : 0;
  const double write = (workload.prompt_tokens - stored) * replica.kv_token_bytes / store.write_bytes_per_s;
  const double compute = compute_s(replica, stored, workload.prompt_tokens);
  const double longest = std::max({read, write, compute});
  const Bound bound = longest == compute ? Bound::kCompute : longest == read ? Bound::kRead : Bound::kWrite;
  return {store.overlapped ? longest : read + std::max(write, compute), bound};
}

}  // namespace

double Replica::context_bytes(double tokens) const noexcept {
  double bytes = tokens * kv_token_bytes + state_bytes;
  for (const WindowPart& part : windows) bytes -= std::max(0.0, tokens - part.window_tokens) * part.token_bytes;
  return bytes;
}

Prefill prefill(const Replica& replica, const Workload& workload, const StorePath& store) {
  KVD_CHECK(workload.prompt_tokens > 0 && replica.flops_per_s > 0);
  const double n = workload.prompt_tokens;
  const double stored = workload.reuse * n;
  Prefill result;
  result.ttft_vanilla_s = compute_s(replica, 0, n);
  result.compute_token_s = result.ttft_vanilla_s / n;
  result.suffix_token_s =
      stored < n ? compute_s(replica, stored, n) / (n - stored) : compute_s(replica, n - 1, n);  // the last token
  result.read_token_s = replica.kv_token_bytes / store.read_bytes_per_s;
  result.write_token_s = replica.kv_token_bytes / store.write_bytes_per_s;
  result.acceleration = result.compute_token_s / result.read_token_s;
  result.crossover = crossover(replica, n, result.read_token_s);
  const DepotTime depot = depot_time(replica, workload, store);
  result.ttft_depot_s = depot.seconds;
  result.bound = depot.bound;
  result.speedup = result.ttft_vanilla_s / result.ttft_depot_s;
  return result;
}

double Batching::ttft_s(double batch) const { return (1 + (batch - 1) / output_tokens) * ttft_one_s; }

double Batching::experts_s(double batch) const {
  double seconds = 0;
  for (const Experts& part : experts) seconds += part.read_s * (1 - part.share - std::pow(1 - part.share, batch));
  return seconds;
}

double Batching::tpot_s(double batch) const {
  return tpot_one_s + (batch - 1) * (prefill_s + decode_s()) + experts_s(batch);
}

double Batching::requests_per_s(double batch) const {
  return batch / (ttft_s(batch) + (output_tokens - 1) * tpot_s(batch));
}

Batching batching(const Replica& replica, const Workload& workload, double ttft_one_s, bool growing) {
  KVD_CHECK(workload.output_tokens >= 1 && replica.memory_bytes_per_s > 0);
  Batching result;
  result.ttft_one_s = ttft_one_s;
  result.tpot_one_s = replica.tpot_one_s;
  result.output_tokens = workload.output_tokens;
  result.prefill_s = ttft_one_s / workload.output_tokens;
  const double context = workload.prompt_tokens + (growing ? workload.output_tokens / 2 : 0);
  result.context_s = replica.context_bytes(context) / replica.memory_bytes_per_s;
  result.request_s = replica.reduce_decode_s + replica.seq_s;
  for (const ExpertPart& part : replica.experts) {
    result.experts.push_back({part.bytes / replica.memory_bytes_per_s, part.share});
  }
  return result;
}

std::uint64_t batch_within(const Batching& batching, const Sla& sla) {
  const auto inside = [&](std::uint64_t batch) {
    const auto b = static_cast<double>(batch);
    return (sla.ttft_s <= 0 || batching.ttft_s(b) <= sla.ttft_s) &&
           (sla.tpot_s <= 0 || batching.tpot_s(b) <= sla.tpot_s);
  };
  std::uint64_t low = 0;  // inside, or no request at all
  std::uint64_t high = kBatchMax + 1;
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (inside(middle) ? low : high) = middle;
  }
  return low;
}

std::uint64_t batch_of_talk(const Batching& batching, double tpot_sla_s) {
  const double room = (tpot_sla_s - batching.tpot_one_s) / (batching.prefill_s + batching.decode_s());
  return room <= 0 ? 0 : static_cast<std::uint64_t>(std::min(std::floor(room), static_cast<double>(kBatchMax)));
}

double batch_gain(const Batching& vanilla, const Batching& depot) {
  return (vanilla.prefill_s + vanilla.decode_s()) / (depot.prefill_s + depot.decode_s());
}

double batch_gain_limit(const Batching& vanilla) { return 1 + vanilla.prefill_s / vanilla.decode_s(); }

double break_even_bytes_per_s(const Replica& replica, const Workload& workload) {
  const double stored_bytes = workload.reuse * workload.prompt_tokens * replica.kv_token_bytes;
  return stored_bytes / compute_s(replica, 0, workload.prompt_tokens);
}

double saturating_bytes_per_s(const Replica& replica, const Workload& workload) {
  const double stored = workload.reuse * workload.prompt_tokens;
  const double rest_s = compute_s(replica, stored, workload.prompt_tokens);
  return rest_s > 0 ? stored * replica.kv_token_bytes / rest_s : kInfinity;
}

std::uint64_t shortest_prompt(const Replica& replica, const Workload& workload, const StorePath& store,
                              std::uint64_t prompt_tokens_max) {
  // Gain per token grows with the prompt: latency is spread over more tokens, and attention makes computing dearer.
  const auto worth = [&](std::uint64_t tokens) {
    Workload other = workload;
    other.prompt_tokens = static_cast<double>(tokens);
    return depot_time(replica, other, store).seconds < compute_s(replica, 0, other.prompt_tokens);
  };
  if (prompt_tokens_max == 0 || !worth(prompt_tokens_max)) return 0;
  std::uint64_t low = 0;
  std::uint64_t high = prompt_tokens_max;
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (worth(middle) ? high : low) = middle;
  }
  return high;
}

double split_tpot_s(const Batching& batching, double batch) {
  return batching.tpot_one_s + (batch - 1) * batching.decode_s() + batching.experts_s(batch);
}

double split_requests_per_s(const Batching& batching, double batch) {
  const double decode_s = batching.output_tokens * split_tpot_s(batching, batch) / batch;  // of a replica, per request
  return 1 / (batching.ttft_one_s + decode_s);
}

}  // namespace kvd::model
