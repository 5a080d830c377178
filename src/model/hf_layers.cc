#include "model/hf_layers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvd::model {
namespace {

constexpr double kCountMax = 2147483648.0;

bool one_of(std::string_view text, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, text) != names.end();
}

// Which mixer layer `i` has, from the fields by which families say it.
Mixer mixer_of(const ConfigFields& fields, const ModelShape& shape, std::uint32_t i) {
  if (const auto type = fields.item({"layer_types", "layers_block_type", "hybrid_override_pattern"}, i)) {
    if (one_of(*type, {"sliding_attention", "chunked_attention", "local_attention"})) return Mixer::kWindow;
    if (one_of(*type, {"linear_attention", "mamba", "mamba2", "recurrent", "conv", "M"})) return Mixer::kRecurrent;
    return Mixer::kFull;
  }
  if (const auto period = fields.count({"attn_layer_period"}); period && *period > 0) {  // Jamba
    return i % *period == fields.count({"attn_layer_offset"}).value_or(0) ? Mixer::kFull : Mixer::kRecurrent;
  }
  if (const auto listed = fields.lists("attn_layer_indices", i)) return *listed ? Mixer::kFull : Mixer::kRecurrent;
  if (const auto every = fields.count({"full_attention_interval"}); every && *every > 0) {  // Qwen3-Next
    return (i + 1) % *every == 0 ? Mixer::kFull : Mixer::kRecurrent;
  }
  if (fields.count({"kv_lora_rank"}).value_or(0) > 0) return Mixer::kLatent;
  if (fields.count({"sliding_window"}).value_or(0) == 0) return Mixer::kFull;
  if (const auto pattern = fields.count({"sliding_window_pattern"}); pattern && *pattern > 0) {  // Gemma 3
    return (i + 1) % *pattern == 0 ? Mixer::kFull : Mixer::kWindow;
  }
  if (shape.family == "gemma2") return i % 2 == 0 ? Mixer::kWindow : Mixer::kFull;
  if (const auto used = fields.flag("use_sliding_window")) {  // Qwen: from max_window_layers on
    return *used && i >= fields.count({"max_window_layers"}).value_or(0) ? Mixer::kWindow : Mixer::kFull;
  }
  return one_of(shape.family, {"qwen2", "qwen3", "qwen2_moe", "qwen3_moe"}) ? Mixer::kFull : Mixer::kWindow;
}

void read_latent(const ConfigFields& fields, const ModelShape& shape, LayerGroup& layer) {
  const std::uint32_t rank = fields.count({"kv_lora_rank"}).value_or(0);
  const std::uint32_t rope = fields.count({"qk_rope_head_dim"}).value_or(64);
  const std::uint32_t nope = fields.count({"qk_nope_head_dim"}).value_or(shape.head_dim);
  layer.key_dim = nope + rope;
  layer.value_dim = fields.count({"v_head_dim"}).value_or(nope);
  layer.latent_dim = rank + rope;
  const double d = shape.hidden;
  const double heads = layer.heads;
  const double query_rank = fields.count({"q_lora_rank"}).value_or(0);
  const double query = query_rank > 0 ? query_rank * (d + heads * layer.key_dim) : d * heads * layer.key_dim;
  const double key_value = d * layer.latent_dim + static_cast<double>(rank) * heads * (nope + layer.value_dim);
  layer.mixer_params = query + key_value + heads * layer.value_dim * d;
}

// State and parameters of a recurrent layer: gated linear attention where its heads are given, Mamba otherwise.
void read_recurrent(const ConfigFields& fields, const ModelShape& shape, LayerGroup& layer) {
  layer.heads = 0;
  layer.kv_heads = 0;
  const double d = shape.hidden;
  if (const auto value_heads = fields.count({"linear_num_value_heads"})) {
    const double key_heads = fields.count({"linear_num_key_heads"}).value_or(*value_heads);
    const double key = key_heads * fields.count({"linear_key_head_dim"}).value_or(128);
    const double value = *value_heads * static_cast<double>(fields.count({"linear_value_head_dim"}).value_or(128));
    const double kernel = fields.count({"linear_conv_kernel_dim"}).value_or(4);
    layer.state_elements =
        value * fields.count({"linear_key_head_dim"}).value_or(128) + (kernel - 1) * (2 * key + value);
    layer.mixer_params = d * (2 * key + 2 * value + 2.0 * *value_heads) + value * d + kernel * (2 * key + value);
    return;
  }
  const double inner = fields.count({"mamba_n_heads", "mamba_num_heads"}).has_value()
                           ? fields.count({"mamba_n_heads", "mamba_num_heads"}).value_or(0) *
                                 static_cast<double>(fields.count({"mamba_d_head", "mamba_head_dim"}).value_or(64))
                           : d * fields.number({"mamba_expand", "expand"}).value_or(2);
  const double state = fields.count({"mamba_d_state", "ssm_state_size"}).value_or(16);
  const double kernel = fields.count({"mamba_d_conv", "conv_kernel"}).value_or(4);
  layer.state_elements = inner * (state + kernel - 1);
  const double rank = fields.count({"mamba_dt_rank"}).value_or(static_cast<std::uint32_t>(d / 16));
  layer.mixer_params = 2 * d * inner + inner * (rank + 2 * state) + rank * inner + inner * (state + kernel) + inner * d;
}

bool has_experts(const ConfigFields& fields, std::uint32_t i) {
  if (i < fields.count({"first_k_dense_replace"}).value_or(0)) return false;
  if (fields.lists("mlp_only_layers", i).value_or(false)) return false;
  if (const auto period = fields.count({"expert_layer_period"}); period && *period > 0) {
    return i % *period == fields.count({"expert_layer_offset"}).value_or(0);
  }
  if (const auto step = fields.count({"decoder_sparse_step", "interleave_moe_layer_step"}); step && *step > 0) {
    return (i + 1) % *step == 0;
  }
  if (const auto every = fields.count({"moe_layer_freq"}); every && *every > 0) return i % *every == 0;
  return true;
}

std::optional<std::string> read_feed(const ConfigFields& fields, const ModelShape& shape, std::uint32_t i,
                                     LayerGroup& layer) {
  const double matrices = shape.gated ? 3 : 2;
  const double d = shape.hidden;
  const auto experts = fields.count({"num_local_experts", "num_experts", "n_routed_experts"}).value_or(0);
  if (experts == 0 || !has_experts(fields, i)) {
    layer.feed_params = layer.feed_params_active = matrices * d * shape.feed_dim;
    return std::nullopt;
  }
  const auto used = fields.count({"num_experts_per_tok", "num_experts_per_token", "experts_per_token"}).value_or(0);
  if (used == 0 || used > experts) {
    return fmt::format("{} experts of which a token uses {}: expected num_experts_per_tok from 1 to {}", experts, used,
                       experts);
  }
  const double one = matrices * d * fields.count({"moe_intermediate_size"}).value_or(shape.feed_dim);
  const double shared = matrices * d * fields.count({"shared_expert_intermediate_size"}).value_or(0) +
                        one * fields.count({"n_shared_experts"}).value_or(0);
  const double gate = d * experts;
  layer.experts = experts;
  layer.experts_used = used;
  layer.feed_params = experts * one + shared + gate;
  layer.feed_params_active = used * one + shared + gate;
  return std::nullopt;
}

}  // namespace

const nlohmann::json* ConfigFields::find(Names names) const {
  for (const char* name : names) {
    const auto found = object_.find(name);
    if (found != object_.end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

std::optional<double> ConfigFields::number(Names names) const {
  const auto* value = find(names);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  const auto number = value->get<double>();
  return std::isfinite(number) && number >= 0 && number <= kCountMax ? std::optional(number) : std::nullopt;
}

std::optional<std::uint32_t> ConfigFields::count(Names names) const {
  const auto value = number(names);
  if (!value || *value != std::floor(*value)) return std::nullopt;
  return static_cast<std::uint32_t>(*value);
}

std::optional<bool> ConfigFields::flag(const char* name) const {
  const auto* value = find({name});
  return value != nullptr && value->is_boolean() ? std::optional(value->get<bool>()) : std::nullopt;
}

std::optional<std::string> ConfigFields::text(Names names) const {
  const auto* value = find(names);
  return value != nullptr && value->is_string() ? std::optional(value->get<std::string>()) : std::nullopt;
}

const nlohmann::json* ConfigFields::object(const char* name) const {
  const auto* value = find({name});
  return value != nullptr && value->is_object() ? value : nullptr;
}

std::optional<std::string> ConfigFields::item(Names names, std::size_t i) const {
  const auto* value = find(names);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) {
    const auto& pattern = value->get_ref<const std::string&>();
    return i < pattern.size() ? std::optional(pattern.substr(i, 1)) : std::nullopt;
  }
  if (!value->is_array() || i >= value->size() || !(*value)[i].is_string()) return std::nullopt;
  return (*value)[i].get<std::string>();
}

std::optional<bool> ConfigFields::lists(const char* name, std::uint32_t value) const {
  const auto* list = find({name});
  if (list == nullptr || !list->is_array()) return std::nullopt;
  return std::ranges::any_of(*list, [&](const nlohmann::json& x) { return x.is_number() && x.get<double>() == value; });
}

std::expected<ModelShape, std::string> read_shape(const ConfigFields& fields) {
  ModelShape shape;
  shape.family = fields.text({"model_type"}).value_or("");
  shape.layers = fields.count({"num_hidden_layers", "n_layer", "n_layers", "num_layers"}).value_or(0);
  shape.hidden = fields.count({"hidden_size", "n_embd", "d_model"}).value_or(0);
  shape.heads = fields.count({"num_attention_heads", "n_head", "n_heads"}).value_or(0);
  if (shape.layers == 0) return std::unexpected("no layers: expected num_hidden_layers, n_layer or num_layers");
  if (shape.hidden == 0) return std::unexpected("no hidden size: expected hidden_size, n_embd or d_model");
  if (shape.heads == 0) return std::unexpected("no heads: expected num_attention_heads or n_head");
  const bool multi_query =
      fields.flag("multi_query").value_or(false) && !fields.flag("new_decoder_architecture").value_or(false);
  shape.kv_heads =
      fields.count({"num_key_value_heads", "n_head_kv", "num_kv_heads"}).value_or(multi_query ? 1 : shape.heads);
  if (shape.kv_heads == 0 || shape.kv_heads > shape.heads) {
    return std::unexpected(
        fmt::format("{} KV heads for {} heads: expected 1 to {}", shape.kv_heads, shape.heads, shape.heads));
  }
  shape.head_dim = fields.count({"head_dim"}).value_or(shape.hidden / shape.heads);
  if (shape.head_dim == 0) return std::unexpected("a head of size 0: expected hidden_size above num_attention_heads");
  shape.feed_dim =
      fields.count({"intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"}).value_or(4 * shape.hidden);
  shape.gated = !one_of(shape.family, {"gpt2", "opt", "falcon", "gpt_neox", "gptj", "bloom", "phi", "starcoder2", "mpt",
                                       "gpt_bigcode", "nemotron", "nemotron_h"});
  shape.ties_by_default =
      one_of(shape.family, {"gpt2", "opt", "gemma", "gemma2", "gemma3", "gemma3_text", "falcon", "bloom"});
  return shape;
}

std::expected<LayerGroup, std::string> read_layer(const ConfigFields& fields, const ModelShape& shape,
                                                  std::uint32_t i) {
  LayerGroup layer;
  layer.mixer = mixer_of(fields, shape, i);
  layer.layers = 1;
  layer.heads = shape.heads;
  layer.kv_heads = shape.kv_heads;
  layer.key_dim = layer.value_dim = shape.head_dim;
  if (layer.mixer == Mixer::kLatent) {
    read_latent(fields, shape, layer);
  } else if (layer.mixer == Mixer::kRecurrent) {
    read_recurrent(fields, shape, layer);
  } else {
    layer.mixer_params = 2.0 * shape.hidden * shape.head_dim * (shape.heads + static_cast<double>(shape.kv_heads));
  }
  if (layer.mixer == Mixer::kWindow) {
    layer.window_tokens = fields.count({"sliding_window", "attention_chunk_size"}).value_or(0);
    if (layer.window_tokens == 0)
      return std::unexpected("a sliding window without its length: expected sliding_window");
  }
  // Nemotron-H: a layer is either a mixer or a feed-forward ('-').
  const auto letter = fields.item({"hybrid_override_pattern"}, i);
  if (letter == "-") {
    layer = LayerGroup{.mixer = Mixer::kRecurrent, .layers = 1};
  } else if (letter) {
    return layer;
  }
  if (auto error = read_feed(fields, shape, i, layer)) return std::unexpected(*error);
  return layer;
}

bool same_shape(const LayerGroup& a, const LayerGroup& b) noexcept {
  return a.mixer == b.mixer && a.heads == b.heads && a.kv_heads == b.kv_heads && a.key_dim == b.key_dim &&
         a.value_dim == b.value_dim && a.latent_dim == b.latent_dim && a.window_tokens == b.window_tokens &&
         a.state_elements == b.state_elements && a.mixer_params == b.mixer_params && a.feed_params == b.feed_params &&
         a.feed_params_active == b.feed_params_active;
}

}  // namespace kvd::model
