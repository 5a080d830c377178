// An engine of a simulated fleet, made of catalogue entries: how long its passes take and how much KV it has room for.
// Nothing is fitted. Pure; any thread.
//
//   base     all weights are read once (of a mixture all experts: right for passes of many tokens, too slow for single
//            ones), the device's fixed time of a step, and the latencies of all-reduces
//   token    a prompt token's matrix products and all-reduces; layers with a window: its attention to a whole window
//   pair     attention of the layers that look at all tokens
//   context  reading a cached token in those layers, with every copy that tensor parallelism keeps of it
//   seq      a decoding sequence's all-reduces, the device's time for it, its read of whole windows and recurrent
//   states
//
// Windows are taken as full: an upper bound for what is shorter. Left out: what decodes compute, which hides behind
// reading the weights up to some hundred sequences.
#pragma once

#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/deployment.h"
#include "model/linear_pass.h"

namespace kvd::model {

struct CatalogueEngine {
  LinearPass pass;
  double kv_token_bytes = 0;        // as a tier stores it, once
  double kv_token_memory = 0;       // bytes in the engine's memory, with all copies
  double kv_memory_bytes = 0;       // what kMemoryUsed of the memory leaves beside the weights
  double kv_memory_bytes_most = 0;  // what all of it leaves
  std::uint64_t kv_tokens = 0;      // that fit into kv_memory_bytes; blocks hold all layers, also those with windows
  std::uint32_t layers = 0;
  std::uint64_t context_tokens = 0;      // the model's; 0 = its file does not say
  std::vector<std::string> assumptions;  // for want of figures in the catalogue, a line each for the user
};

// One replica of the question; its workload and SLA do not matter. Requires model and device. The error is one line
// with the arithmetic: the model does not fit, with at least `kv_tokens_min` tokens, or it keeps no KV.
[[nodiscard]] std::expected<CatalogueEngine, std::string> catalogue_engine(const Question& question,
                                                                           std::uint32_t kv_tokens_min);

// Qwen3-32B in bf16 on two H100 SXM, of the built-in catalogue, with the KV cache that vLLM had in llm-d's published
// run and the context to which YaRN extends the model's.
[[nodiscard]] CatalogueEngine qwen3_32b_h100x2();

// Bytes of an element: bf16, fp16, fp8, int8, fp32; 0 for other names.
[[nodiscard]] double precision_bytes(std::string_view precision);
[[nodiscard]] std::span<const std::string_view> precision_names() noexcept;

}  // namespace kvd::model
