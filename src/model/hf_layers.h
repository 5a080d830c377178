// Layer by layer what a config.json says: which mixer, which feed-forward. Internal to the reader in hf_config.cc, kept
// apart because each family of models writes this differently. Pure.
#pragma once

#include <cstdint>
#include <expected>
#include <initializer_list>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "model/transformer.h"

namespace kvd::model {

// Typed access to an object's fields under any of several names; absent, null and other types are nothing.
class ConfigFields {
 public:
  using Names = std::initializer_list<const char*>;
  // `object` outlives this.
  explicit ConfigFields(const nlohmann::json& object) : object_(object) {}
  [[nodiscard]] std::optional<double> number(Names names) const;
  // A whole number from 0 to 2^31; others are nothing.
  [[nodiscard]] std::optional<std::uint32_t> count(Names names) const;
  [[nodiscard]] std::optional<bool> flag(const char* name) const;
  [[nodiscard]] std::optional<std::string> text(Names names) const;
  [[nodiscard]] const nlohmann::json* object(const char* name) const;
  // The i-th text of a list, or the i-th character of a text.
  [[nodiscard]] std::optional<std::string> item(Names names, std::size_t i) const;
  // A list of numbers has `value`; nothing when there is no such list.
  [[nodiscard]] std::optional<bool> lists(const char* name, std::uint32_t value) const;

 private:
  [[nodiscard]] const nlohmann::json* find(Names names) const;
  const nlohmann::json& object_;
};

// What is the same in all layers.
struct ModelShape {
  std::string family;  // model_type
  std::uint32_t layers = 0;
  std::uint32_t hidden = 0;
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t feed_dim = 0;
  bool gated = true;  // three matrices in a feed-forward instead of two
  bool ties_by_default = false;
};

// The error says what is missing and which names were looked for.
std::expected<ModelShape, std::string> read_shape(const ConfigFields& fields);
// Layer `i` of the model; LayerGroup::layers is 1.
std::expected<LayerGroup, std::string> read_layer(const ConfigFields& fields, const ModelShape& shape, std::uint32_t i);
// Equal apart from the number of layers.
bool same_shape(const LayerGroup& a, const LayerGroup& b) noexcept;

}  // namespace kvd::model
