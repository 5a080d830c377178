// How long a forward pass of an engine takes, as a function of what is in it. Pure values; every constant is fitted
// (step_fit.h, docs/sim.md lists the table that each comes from) or derived from data sheets.
//
// A pass with prefill:
//   sqrt(floor^2 + (gpu + warm-up)^2) + prefill sequences * seq_s, where gpu = tokens * token_s + pairs * pair_s
// The floor is what launching the kernels and reading the weights costs however few the tokens are; the square root is
// the smooth maximum of the two, and is exact under scaling of all times by a power of two. A pair is one (query, key)
// pair of causal attention. Chunked prefill runs another attention kernel, with constants of its own, and also attends
// to what is in the cache.
// A pass with decodes: decode_batch(sequences) + context tokens * context_token_s (their KV is read once a pass); in a
// mixed pass the decodes add what they cost above a batch of one.
// Warm-up: the first seconds of GPU work of a fresh process are slower by `warmup_share`, up to `warmup_max_s` in all.
#pragma once

#include <vector>

namespace kvd::model {

// What one pass holds.
struct PassShape {
  double prefill_tokens = 0;
  double prefill_seqs = 0;
  double new_pairs = 0;       // pairs among the tokens of this pass: n * n / 2 a prompt
  double context_pairs = 0;   // pairs with cached tokens: n * context
  double decode_seqs = 0;     // sequences with one new token
  double decode_context = 0;  // their cached tokens, summed
  bool chunked = false;       // chunked prefill's attention kernel
};

// A curve through measured points (batch, seconds), linear between them and beyond the last. Without points, 0.
struct BatchCurve {
  std::vector<double> batch;  // ascending
  std::vector<double> seconds;
  [[nodiscard]] double at(double batch_size) const noexcept;
};

struct StepTime {
  double floor_s = 0;
  double token_s = 0;
  double pair_s = 0;
  double seq_s = 0;
  double chunked_floor_s = 0;
  double chunked_pair_s = 0;
  double chunked_context_pair_s = 0;
  double context_token_s = 0;
  BatchCurve decode_batch;
  double warmup_share = 0;
  double warmup_max_s = 0;

  // Seconds of the pass in an engine that has warmed up.
  [[nodiscard]] double seconds(const PassShape& pass) const noexcept;
  // The same in an engine that has `warmup_left` of its warm-up to go, which starts at warmup_max_s and is reduced.
  [[nodiscard]] double seconds(const PassShape& pass, double& warmup_left) const noexcept;
};

// Moving KV blocks between device and host with one copy per block, layer and K or V (or `gathered`, one a request).
struct SwapTime {
  double copy_s = 0;  // start of a copy
  double byte_s = 0;  // one direction

  // Seconds to move `blocks` of `block_bytes` bytes in `copies_per_block` copies each, one way.
  [[nodiscard]] double seconds(double blocks, double copies_per_block, double block_bytes) const noexcept {
    return blocks * copies_per_block * copy_s + blocks * block_bytes * byte_s;
  }
};

}  // namespace kvd::model
