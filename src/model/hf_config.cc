#include "model/hf_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/hf_layers.h"

namespace kvd::model {
namespace {

constexpr std::uint32_t kLayersMax = 10'000;

std::unexpected<InputFault> fault(std::string_view file, std::size_t line, std::string text) {
  return std::unexpected(InputFault{std::string(file), line, std::move(text)});
}

double weight_bytes(const ConfigFields& fields) {
  if (const auto* quantised = fields.object("quantization_config")) {
    const ConfigFields inner(*quantised);
    const std::string method = inner.text({"quant_method", "quant_algo"}).value_or("");
    if (method == "fp8" || method == "FP8") return 1;
    if (const auto bits = inner.number({"bits"})) return *bits / 8;
    if (method == "mxfp4") return 0.53125;  // 4 bits and a scale of 8 bits for 32 of them
  }
  const std::string type = fields.text({"torch_dtype", "dtype"}).value_or("bfloat16");
  if (type.find("32") != std::string::npos) return 4;
  return type.find("float8") != std::string::npos ? 1 : 2;
}

}  // namespace

FromInput<Transformer> read_hf_config(std::string_view text, std::string_view name, std::string_view file) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    const auto byte = std::min<std::size_t>(error.byte, text.size());
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(byte), '\n');
    return fault(file, static_cast<std::size_t>(line), "not JSON here: expected a Hugging Face config.json");
  } catch (const nlohmann::json::exception&) {
    return fault(file, 0, "a number larger than any number of a model: expected a Hugging Face config.json");
  }
  if (!json.is_object()) return fault(file, 1, "expected a JSON object, a Hugging Face config.json");
  // Models that also see or hear keep the language model's fields one level down.
  for (const char* inner : {"text_config", "llm_config", "language_config"}) {
    if (json.contains(inner) && json[inner].is_object()) {
      nlohmann::json language = json[inner];
      if (json.contains("quantization_config")) language["quantization_config"] = json["quantization_config"];
      json = std::move(language);
      break;
    }
  }
  const ConfigFields fields(json);
  const auto shape = read_shape(fields);
  if (!shape) return fault(file, 0, shape.error());
  if (shape->layers > kLayersMax)
    return fault(file, 0, fmt::format("{} layers: expected at most {}", shape->layers, kLayersMax));

  Transformer model;
  model.name = name;
  model.source = file;
  model.hidden = shape->hidden;
  model.vocabulary = fields.count({"vocab_size", "n_vocab"}).value_or(0);
  model.context_tokens =
      fields.count({"max_position_embeddings", "n_positions", "seq_length", "max_seq_len"}).value_or(0);
  model.tied_embeddings = fields.flag("tie_word_embeddings").value_or(shape->ties_by_default);
  model.weight_bytes_per_param = weight_bytes(fields);
  for (std::uint32_t i = 0; i < shape->layers; ++i) {
    const auto layer = read_layer(fields, *shape, i);
    if (!layer) return fault(file, 0, layer.error());
    if (!model.groups.empty() && same_shape(model.groups.back(), *layer)) {
      ++model.groups.back().layers;
      continue;
    }
    const auto same =
        std::ranges::find_if(model.groups, [&](const LayerGroup& group) { return same_shape(group, *layer); });
    if (same != model.groups.end()) {
      ++same->layers;
    } else {
      model.groups.push_back(*layer);
    }
  }
  return model;
}

}  // namespace kvd::model
