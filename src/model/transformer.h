// A transformer as far as its cost goes: groups of equal layers, bytes of KV, FLOP of a token by kind of layer. Values
// and pure functions; any thread. hf_config.h reads one from a Hugging Face config.json, catalogue.h has built-in ones.
//
// Counted: matrix products (2 FLOP per parameter and token), attention (2 FLOP per multiply-add of scores and values).
// Not counted: norms, activations, rotary embeddings, sampling: below 1 % of a layer's FLOP at the sizes served today.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/closed_form.h"

namespace kvd::model {

// How a group of layers mixes tokens.
enum class Mixer : std::uint8_t {
  kFull,       // attention to all tokens before; KV heads < heads: grouped or multi-query
  kWindow,     // attention to the last `window_tokens`
  kLatent,     // multi-head latent attention: one compressed vector per token, the same on every tensor rank
  kRecurrent,  // a state of fixed size per sequence instead of KV (Mamba, gated linear attention)
};
[[nodiscard]] const char* mixer_name(Mixer mixer) noexcept;

// Layers of one shape.
struct LayerGroup {
  Mixer mixer = Mixer::kFull;
  std::uint32_t layers = 0;
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t key_dim = 0;        // of a head
  std::uint32_t value_dim = 0;      // of a head
  std::uint32_t latent_dim = 0;     // kLatent: elements kept per token
  std::uint32_t window_tokens = 0;  // kWindow
  double state_elements = 0;        // kRecurrent: kept per sequence and layer
  double mixer_params = 0;          // per layer
  double feed_params = 0;           // per layer: feed-forward, all experts
  double feed_params_active = 0;    // per layer: of these, what one token uses
  std::uint32_t experts = 0;        // routed; 0 = dense
  std::uint32_t experts_used = 0;   // of them, by one token

  // KV elements of one token and layer; 0 for kRecurrent.
  [[nodiscard]] double kv_elements() const noexcept;
  // FLOP of one (query, key) pair in one layer.
  [[nodiscard]] double pair_flops() const noexcept;
};

struct Transformer {
  std::string name;
  std::string source;  // where the numbers come from
  std::uint32_t hidden = 0;
  std::uint32_t vocabulary = 0;
  std::uint64_t context_tokens = 0;  // 0 = the file does not say
  bool tied_embeddings = false;
  double weight_bytes_per_param = 2;  // as published; a deployment may quantise
  double params_published = 0;        // 0 = count them
  std::vector<LayerGroup> groups;

  [[nodiscard]] std::uint32_t layers() const noexcept;
  // Parameters, counted from the shapes where none are published.
  [[nodiscard]] double params() const noexcept;
  // Those that one token uses: without the experts it is not sent to.
  [[nodiscard]] double params_active() const noexcept;

  // KV bytes that one more token adds in all layers while it is inside every window.
  [[nodiscard]] double kv_token_bytes(double bytes_per_element) const noexcept;
  // KV bytes of a sequence of `tokens`: windows hold no more than their length, recurrent layers a fixed state.
  [[nodiscard]] double kv_bytes(double tokens, double bytes_per_element) const noexcept;
  // Bytes of one block of `block_tokens`: what a depot stores for it, all layers that keep tokens.
  [[nodiscard]] double kv_block_bytes(std::uint32_t block_tokens, double bytes_per_element) const noexcept;
  // Some layers keep the same KV on every tensor rank.
  [[nodiscard]] bool kv_replicated() const noexcept;

  // For the closed forms: FLOP per token of all matrix products (2 per active parameter), and pairs by window.
  [[nodiscard]] double token_flops() const noexcept { return 2 * params_active(); }
  [[nodiscard]] std::vector<AttentionPart> attention() const;
  // What layers with a window keep of a token's KV, by window; bytes of a sequence's state in recurrent layers; routed
  // experts.
  [[nodiscard]] std::vector<WindowPart> windows(double bytes_per_element) const;
  [[nodiscard]] double state_bytes(double bytes_per_element) const noexcept;
  [[nodiscard]] std::vector<ExpertPart> experts(double bytes_per_param) const;
};

// FLOP of one token by kind of layer, for a table.
struct FlopsRow {
  std::string kind;          // "full attention", "feed-forward, 8 of 128 experts", "embedding and head"
  std::uint32_t layers = 0;  // 0 = not in a layer
  double token_flops = 0;    // all these layers together, matrix products
  double pair_flops = 0;     // per (query, key) pair
};
[[nodiscard]] std::vector<FlopsRow> flops_by_kind(const Transformer& model);

}  // namespace kvd::model
