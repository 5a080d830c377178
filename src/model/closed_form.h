// The closed forms of what a KV depot brings (the SDC'25 talk "Disaggregated KV Storage"): time to the first token with
// and without stored KV, batches within an SLA, efficiency against experience. Pure functions of numbers; any thread.
// docs/plan.md derives them and says where they stop holding.
//
// Notation: N prompt tokens, M output tokens, a the share of the prompt whose KV is stored; T seconds to compute a
// prompt token, R seconds to read a token's KV, W seconds to write it; B requests at once. Units: s, bytes, FLOP.
#pragma once

#include <cstdint>
#include <vector>

namespace kvd::model {

// Which pairs of tokens attention computes. kFull: every token with all N, as the talk counts. kCausal: a token with
// those before it, which halves the sum over a prompt; tokens behind a stored prefix attend to all of it.
enum class Attention : std::uint8_t { kCausal, kFull };

// Layers that attend over the same span: their cost of one (query, key) pair and how far back they look.
struct AttentionPart {
  double pair_flops = 0;
  double window_tokens = 0;  // 0 = all of the context
};

// Layers that keep no more than a window of KV: their share of a token's KV bytes.
struct WindowPart {
  double token_bytes = 0;
  double window_tokens = 0;
};

// Routed experts of layers of one kind: a decode step reads those that any of its tokens is sent to.
struct ExpertPart {
  double bytes = 0;  // of all of them, in all these layers
  double share = 0;  // of them that one token is sent to
};

// One replica of a model: the GPUs that hold its weights once, and what the model costs on them.
struct Replica {
  double flops_per_s = 0;         // F: achieved, all GPUs of the replica together
  double memory_bytes_per_s = 0;  // H: achieved, all together
  double token_flops = 0;         // 2P: matrix products of one token, P = parameters that a token uses
  std::vector<AttentionPart> attention;
  Attention mode = Attention::kCausal;
  double kv_token_bytes = 0;          // KV of one prompt token over all layers
  double tpot_one_s = 0;              // TPOT(1): one decode step with one request
  std::vector<WindowPart> windows{};  // of kv_token_bytes
  double state_bytes = 0;             // of a sequence, however long: recurrent layers
  std::vector<ExpertPart> experts{};
  // All-reduces between its GPUs: of a prompt's token, beside what flops_per_s has of them, and of a further request's
  // token in a decode step.
  double reduce_token_s = 0;
  double reduce_decode_s = 0;
  double seq_s = 0;  // a decode step's fixed time for each further request

  // KV in memory of a sequence of `tokens`, which each of its decode steps reads: windows hold no more than their
  // length, recurrent layers their state.
  [[nodiscard]] double context_bytes(double tokens) const noexcept;
};

struct Workload {
  double prompt_tokens = 0;  // N > 0
  double output_tokens = 1;  // M >= 1
  double reuse = 0;          // a, 0 to 1
};

// The store as one replica sees it.
struct StorePath {
  double read_bytes_per_s = 0;   // B_io; infinity where KV needs no transfer
  double write_bytes_per_s = 0;  // infinity where writes never hold up a prefill
  double latency_s = 0;          // before the first byte, once per request
  bool overlapped = true;        // layers are fetched while others compute; otherwise fetch, then compute
};

enum class Bound : std::uint8_t { kCompute, kRead, kWrite };

// Items 1 to 4: one request alone.
struct Prefill {
  double compute_token_s = 0;  // T over the whole prompt
  double suffix_token_s = 0;   // T of the tokens behind the stored prefix
  double read_token_s = 0;     // R
  double write_token_s = 0;    // W
  double acceleration = 0;     // e = T/R
  double crossover = 0;        // a*: below it compute binds, above it reads
  double ttft_vanilla_s = 0;   // N*T
  double ttft_depot_s = 0;     // with the stored share read instead
  double speedup = 0;          // x
  Bound bound = Bound::kCompute;
};
[[nodiscard]] Prefill prefill(const Replica& replica, const Workload& workload, const StorePath& store);

// Items 5 to 7: B requests at once, continuous batching.
struct Batching {
  double ttft_one_s = 0;  // TTFT(1)
  double tpot_one_s = 0;  // TPOT(1)
  double output_tokens = 1;
  double prefill_s = 0;  // dP = TTFT(1)/M: what a further request adds to every step for its prefill
  double context_s = 0;  // dH = N*kv/H: and for reading its KV; in windows what they hold of it
  double request_s = 0;  // and for its token's all-reduces and the engine's own work
  // Routed experts: seconds to read all of them, and the share that one token is sent to.
  struct Experts {
    double read_s = 0;
    double share = 0;
  };
  std::vector<Experts> experts{};

  // What reading the experts of B requests takes beyond those of one: each token goes to its experts independently of
  // the others, so B of them meet 1 - (1 - share)^B of all. Real routers are less even and meet fewer.
  [[nodiscard]] double experts_s(double batch) const;
  // What a further request adds to every step for its decoding.
  [[nodiscard]] double decode_s() const noexcept { return context_s + request_s; }
  [[nodiscard]] double ttft_s(double batch) const;
  [[nodiscard]] double tpot_s(double batch) const;
  // Requests per second of a replica whose B slots are always busy: B/(TTFT(B) + (M-1)*TPOT(B)).
  [[nodiscard]] double requests_per_s(double batch) const;
};
// `ttft_one_s`: Prefill::ttft_vanilla_s or ttft_depot_s. `growing`: KV read is that of prompt and half of the answer.
[[nodiscard]] Batching batching(const Replica& replica, const Workload& workload, double ttft_one_s,
                                bool growing = false);

struct Sla {
  double ttft_s = 0;  // 0 = no limit
  double tpot_s = 0;
};
inline constexpr std::uint64_t kBatchMax = 1'000'000;

// The largest B with TPOT(B) and TTFT(B) inside the SLA; 0 when not even one request is. At most kBatchMax.
[[nodiscard]] std::uint64_t batch_within(const Batching& batching, const Sla& sla);
// Item 6 as the talk writes it, on TPOT alone: floor((SLA - TPOT(1))/(dP + dH)), one less than TPOT(B) allows where
// there are no experts to read.
[[nodiscard]] std::uint64_t batch_of_talk(const Batching& batching, double tpot_sla_s);
// (dP + dH)/(dP/x + dH), and its limit for x without bound, 1 + dP/dH.
[[nodiscard]] double batch_gain(const Batching& vanilla, const Batching& depot);
[[nodiscard]] double batch_gain_limit(const Batching& vanilla);

// What follows from the forms for someone who buys.
// Bytes per second below which reading takes longer than computing everything: a*kv/T.
[[nodiscard]] double break_even_bytes_per_s(const Replica& replica, const Workload& workload);
// Bytes per second above which reading is hidden behind the compute of the rest: faster storage gains nothing.
// Infinity when nothing is left to compute.
[[nodiscard]] double saturating_bytes_per_s(const Replica& replica, const Workload& workload);
// Fewest prompt tokens, with the same share stored, for which the depot answers sooner than computing; 0 = never up
// to `prompt_tokens_max`.
[[nodiscard]] std::uint64_t shortest_prompt(const Replica& replica, const Workload& workload, const StorePath& store,
                                            std::uint64_t prompt_tokens_max);
// Requests per second per replica when prefill and decode have GPUs of their own, in the ratio that keeps both busy.
[[nodiscard]] double split_requests_per_s(const Batching& batching, double batch);
// TPOT(B) of a decode replica of such a split: no prefill in its steps.
[[nodiscard]] double split_tpot_s(const Batching& batching, double batch);

}  // namespace kvd::model
