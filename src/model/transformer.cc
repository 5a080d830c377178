#include "model/transformer.h"

#include <algorithm>

namespace kvd::model {

const char* mixer_name(Mixer mixer) noexcept {
  switch (mixer) {
    case Mixer::kFull: return "full attention";
    case Mixer::kWindow: return "sliding window";
    case Mixer::kLatent: return "latent attention";
    case Mixer::kRecurrent: return "recurrent";
  }
  return "";
}

double LayerGroup::kv_elements() const noexcept {
  if (mixer == Mixer::kRecurrent) return 0;
  if (mixer == Mixer::kLatent) return latent_dim;
  return static_cast<double>(kv_heads) * (key_dim + value_dim);
}

double LayerGroup::pair_flops() const noexcept {
  return mixer == Mixer::kRecurrent ? 0 : 2.0 * heads * (key_dim + value_dim);
}

std::uint32_t Transformer::layers() const noexcept {
  std::uint32_t sum = 0;
  for (const LayerGroup& group : groups) sum += group.layers;
  return sum;
}

namespace {

double embedding_params(const Transformer& model) {
  return (model.tied_embeddings ? 1.0 : 2.0) * model.hidden * model.vocabulary;
}

double counted_params(const Transformer& model) {
  double sum = embedding_params(model);
  for (const LayerGroup& group : model.groups) sum += group.layers * (group.mixer_params + group.feed_params);
  return sum;
}

}  // namespace

double Transformer::params() const noexcept { return params_published > 0 ? params_published : counted_params(*this); }

double Transformer::params_active() const noexcept {
  double idle = 0;
  for (const LayerGroup& group : groups) idle += group.layers * (group.feed_params - group.feed_params_active);
  return params() - idle;
}

double Transformer::kv_token_bytes(double bytes_per_element) const noexcept {
  double elements = 0;
  for (const LayerGroup& group : groups) elements += group.layers * group.kv_elements();
  return elements * bytes_per_element;
}

double Transformer::kv_bytes(double tokens, double bytes_per_element) const noexcept {
  double elements = 0;
  for (const LayerGroup& group : groups) {
    const double kept = group.mixer == Mixer::kWindow ? std::min<double>(tokens, group.window_tokens) : tokens;
    elements += group.layers * (kept * group.kv_elements() + group.state_elements);
  }
  return elements * bytes_per_element;
}

double Transformer::kv_block_bytes(std::uint32_t block_tokens, double bytes_per_element) const noexcept {
  return block_tokens * kv_token_bytes(bytes_per_element);
}

bool Transformer::kv_replicated() const noexcept {
  return std::ranges::any_of(groups, [](const LayerGroup& group) { return group.mixer == Mixer::kLatent; });
}

std::vector<AttentionPart> Transformer::attention() const {
  std::vector<AttentionPart> parts;
  for (const LayerGroup& group : groups) {
    if (group.pair_flops() <= 0) continue;
    const double window = group.mixer == Mixer::kWindow ? group.window_tokens : 0;
    const auto same = std::ranges::find(parts, window, &AttentionPart::window_tokens);
    if (same != parts.end()) {
      same->pair_flops += group.layers * group.pair_flops();
    } else {
      parts.push_back({group.layers * group.pair_flops(), window});
    }
  }
  return parts;
}

std::vector<WindowPart> Transformer::windows(double bytes_per_element) const {
  std::vector<WindowPart> parts;
  for (const LayerGroup& group : groups) {
    if (group.mixer != Mixer::kWindow) continue;
    const double bytes = group.layers * group.kv_elements() * bytes_per_element;
    const double window = group.window_tokens;
    const auto same = std::ranges::find(parts, window, &WindowPart::window_tokens);
    if (same != parts.end()) {
      same->token_bytes += bytes;
    } else {
      parts.push_back({bytes, window});
    }
  }
  return parts;
}

double Transformer::state_bytes(double bytes_per_element) const noexcept {
  double elements = 0;
  for (const LayerGroup& group : groups) elements += group.layers * group.state_elements;
  return elements * bytes_per_element;
}

std::vector<ExpertPart> Transformer::experts(double bytes_per_param) const {
  std::vector<ExpertPart> parts;
  for (const LayerGroup& group : groups) {
    if (group.experts_used == 0 || group.experts_used >= group.experts) continue;  // a token meets all there are
    const double share = static_cast<double>(group.experts_used) / group.experts;
    // What a token does not use is the share 1 - used/experts of the routed ones; shared experts are not in it.
    const double params = group.layers * (group.feed_params - group.feed_params_active) / (1 - share);
    parts.push_back({params * bytes_per_param, share});
  }
  return parts;
}

std::vector<FlopsRow> flops_by_kind(const Transformer& model) {
  std::vector<FlopsRow> rows;
  const auto row = [&](const std::string& kind) -> FlopsRow& {
    const auto found = std::ranges::find(rows, kind, &FlopsRow::kind);
    return found != rows.end() ? *found : rows.emplace_back(FlopsRow{.kind = kind});
  };
  for (const LayerGroup& group : model.groups) {
    FlopsRow& mixer = row(mixer_name(group.mixer));
    mixer.layers += group.layers;
    mixer.token_flops += 2 * group.layers * group.mixer_params;
    mixer.pair_flops += group.layers * group.pair_flops();
    FlopsRow& feed = row(group.experts == 0 ? "feed-forward" : "feed-forward, experts");
    feed.layers += group.layers;
    feed.token_flops += 2 * group.layers * group.feed_params_active;
  }
  row("embedding and head").token_flops = 2 * embedding_params(model);
  return rows;
}

}  // namespace kvd::model
