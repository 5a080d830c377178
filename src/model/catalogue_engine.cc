#include "model/catalogue_engine.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/check.h"

namespace kvd::model {
namespace {

constexpr std::array<std::string_view, 5> kPrecisions{"bf16", "fp16", "fp8", "int8", "fp32"};
constexpr std::array<double, kPrecisions.size()> kPrecisionBytes{2, 2, 1, 1, 4};

double longest_window(const Transformer& model) {
  double longest = 1;
  for (const LayerGroup& group : model.groups) longest = std::max<double>(longest, group.window_tokens);
  return longest;
}

LinearPass pass_of(const Question& q, const Replica& replica, double copies) {
  const Transformer& model = *q.model;
  const double flops = replica.flops_per_s;
  const double bytes = replica.memory_bytes_per_s;
  double token_flops = replica.token_flops;
  double pair_flops = 0;
  for (const AttentionPart& part : replica.attention) {
    token_flops += part.pair_flops * part.window_tokens;
    if (part.window_tokens <= 0) pair_flops += part.pair_flops;
  }
  // A sequence's KV grows by `each` a token once its windows are full, which hold `fixed` together with its states.
  const double full = longest_window(model);
  const double held = model.kv_bytes(full, q.kv_bytes_per_element);
  const double each = (model.kv_bytes(2 * full, q.kv_bytes_per_element) - held) / full;
  const double fixed = held - each * full;
  LinearPass pass;
  const PassReduces reduces = pass_reduces(q);
  pass.base = picoseconds(model.params() * q.weight_bytes_per_param / bytes + q.device->layer_s * model.layers() +
                          q.device->step_s + reduces.pass_s);
  pass.token = picoseconds(token_flops / flops + replica.reduce_token_s);
  pass.pair = picoseconds(pair_flops / flops);
  pass.context = picoseconds(each * copies / bytes);
  pass.seq = picoseconds(fixed * copies / bytes + reduces.token_s + q.device->seq_s);
  return pass;
}

}  // namespace

std::expected<CatalogueEngine, std::string> catalogue_engine(const Question& q, std::uint32_t kv_tokens_min) {
  KVD_CHECK(q.model != nullptr && q.device != nullptr && q.gpus > 0);
  CatalogueEngine engine;
  engine.kv_token_bytes = q.model->kv_token_bytes(q.kv_bytes_per_element);
  if (engine.kv_token_bytes <= 0) {
    return std::unexpected(q.model->name + " keeps no KV for its tokens (recurrent layers only): there is no cache");
  }
  const Replica replica = replica_of(q);
  engine.kv_token_memory = replica.kv_token_bytes;
  engine.layers = q.model->layers();
  engine.context_tokens = q.model->context_tokens;
  const auto room =
      kv_memory_bytes(q, kv_tokens_min * engine.kv_token_memory,
                      fmt::format("{} tokens x {:.0f} B", kv_tokens_min, engine.kv_token_memory), "precision");
  if (!room) return std::unexpected(room.error());
  engine.kv_memory_bytes = *room;
  engine.kv_memory_bytes_most = q.device->memory_bytes * q.gpus - q.model->params() * q.weight_bytes_per_param;
  engine.kv_tokens = static_cast<std::uint64_t>(engine.kv_memory_bytes / engine.kv_token_memory);
  engine.pass = pass_of(q, replica, engine.kv_token_memory / engine.kv_token_bytes);
  engine.assumptions = reduce_assumptions(q);
  return engine;
}

CatalogueEngine qwen3_32b_h100x2() {
  Question q;
  q.model = Catalogue::built_in().model("qwen3-32b");
  q.device = Catalogue::built_in().device("h100");
  q.gpus = 2;
  auto engine = catalogue_engine(q, 1);
  KVD_CHECK(engine.has_value());
  engine->kv_tokens = 307'328;
  engine->context_tokens = 131'072;
  return *engine;
}

double precision_bytes(std::string_view precision) {
  const auto* const found = std::ranges::find(kPrecisions, precision);
  return found == kPrecisions.end() ? 0 : kPrecisionBytes.at(static_cast<std::size_t>(found - kPrecisions.begin()));
}

std::span<const std::string_view> precision_names() noexcept { return kPrecisions; }

}  // namespace kvd::model
