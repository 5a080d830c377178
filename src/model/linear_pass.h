// A pass of an engine in whole picoseconds, as a sum of products: the step model of fleets, in which the time of n
// equal decode passes is known in closed form, exactly, so that passes taken at once end at the same picosecond as
// passes taken one by one. Picoseconds in 64 bits reach 106 days.
#pragma once

#include <cmath>
#include <cstdint>

namespace kvd::model {

using Picoseconds = std::int64_t;
inline constexpr double kPicosecondsPerSecond = 1e12;
inline Picoseconds picoseconds(double seconds) { return std::llround(seconds * kPicosecondsPerSecond); }

struct LinearPass {
  Picoseconds base = 0;     // launches, and reading the weights once
  Picoseconds token = 0;    // a prompt token's matrices
  Picoseconds pair = 0;     // a (query, key) pair of a prompt's attention
  Picoseconds seq = 0;      // a sequence that decodes
  Picoseconds context = 0;  // reading a cached token's KV for a decode

  // `n` passes of `decodes` sequences; `context_tokens` are cached at the first, `decodes` more at each of the next.
  [[nodiscard]] constexpr Picoseconds decode_run(std::int64_t n, std::int64_t decodes,
                                                 std::int64_t context_tokens) const noexcept {
    return n * (base + seq * decodes + context * context_tokens) + context * decodes * (n * (n - 1) / 2);
  }
  [[nodiscard]] constexpr Picoseconds pass(std::int64_t prefill_tokens, std::int64_t pairs, std::int64_t decodes,
                                           std::int64_t context_tokens) const noexcept {
    return decode_run(1, decodes, context_tokens) + token * prefill_tokens + pair * pairs;
  }
};

// What a data sheet and a model's config say.
struct RooflineInput {
  double parameters = 0;  // that a token uses, without embeddings
  double weights_bytes = 0;
  double layers = 0;
  double attention_width = 0;  // query heads * head size
  double kv_bytes_per_token = 0;
  double gpus = 1;
  double peak_flops = 0;          // of one GPU
  double memory_bytes_per_s = 0;  // of one GPU
  double flops_efficiency = 0;    // achieved / peak in prefills
  double memory_efficiency = 0;
  double pass_overhead_s = 0;
  double seq_overhead_s = 0;
};

// Requires positive sizes, rates and efficiencies.
LinearPass roofline(const RooflineInput& in) noexcept;

// Qwen3-32B in bf16 on two H100 SXM with tensor parallelism. Sources: the model's config.json (64 layers, 64 query and
// 8 KV heads of 128, 31.2 G parameters without embeddings), NVIDIA's data sheet (989 TFLOP/s, 3.35 TB/s), and from the
// BLIS simulator's defaults 45 % of peak in prefills, 32.1 us a layer, 126 us a step and 4.4 us a request of overhead;
// 80 % of the memory bandwidth.
RooflineInput qwen3_32b_h100x2() noexcept;

}  // namespace kvd::model
