#include "cmd/sim_engine.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/input.h"
#include "cmd/plan_options.h"
#include "cmd/text_file.h"
#include "model/hf_config.h"

namespace kvd::cmd {

namespace {

constexpr std::uint32_t kGpusMax = 1024;

std::unexpected<EngineFault> fault(const char* key, std::string text) {
  return std::unexpected(EngineFault{key, std::move(text)});
}

std::string unknown(const std::string& name, const std::vector<std::string>& known, const char* how_to_add) {
  const auto near = nearest_names(name, known);
  return fmt::format("'{}' is not known; {}: {}. {}", name, near.empty() ? "known are" : "near",
                     fmt::join(near.empty() ? known : near, ", "), how_to_add);
}

std::expected<model::Catalogue, EngineFault> read_entries(const EngineNames& names) {
  if (names.catalogue.empty()) return model::Catalogue::built_in();
  auto catalogue = read_catalogue({names.catalogue});
  if (!catalogue) return fault("engine.catalogue", catalogue.error());
  return std::move(*catalogue);
}

std::expected<const model::Transformer*, EngineFault> find_model(const std::string& name, model::Catalogue& catalogue) {
  if (name.empty()) return fault("engine.gpu", "engine.model is expected, too");
  if (name.ends_with(".json")) {
    const auto text = read_text(name);
    if (!text) return fault("engine.model", text.error());
    auto read = model::read_hf_config(*text, name, name);
    if (!read) return fault("engine.model", read.error().str());
    catalogue.add_model(std::move(*read));
  }
  const model::Transformer* const found = catalogue.model(name);
  if (found != nullptr) return found;
  return fault("engine.model",
               unknown(name, catalogue.model_names(),
                       "Add one with engine.model = \"FOLDER/config.json\" or engine.catalogue = \"FILE\""));
}

std::expected<void, EngineFault> find_gpus(const std::string& typed, const model::Catalogue& catalogue,
                                           model::Question& q) {
  if (typed.empty()) return fault("engine.model", "engine.gpu is expected, too, as in \"h100:2\"");
  const std::size_t colon = typed.rfind(':');
  if (colon != std::string::npos) {
    const char* const end = typed.data() + typed.size();
    const auto [rest, error] = std::from_chars(typed.data() + colon + 1, end, q.gpus);
    if (error != std::errc{} || rest != end || q.gpus == 0 || q.gpus > kGpusMax) {
      return fault(
          "engine.gpu",
          fmt::format("'{}': NAME or NAME:COUNT is expected, COUNT from 1 to {}, as in \"h100:2\"", typed, kGpusMax));
    }
  }
  const std::string name = typed.substr(0, colon);
  q.device = catalogue.device(name);
  if (q.device != nullptr) return {};
  return fault("engine.gpu", unknown(name, catalogue.device_names(), "Add one with engine.catalogue = \"FILE\""));
}

std::expected<double, EngineFault> bytes_of(const char* key, const std::string& precision) {
  const double bytes = model::precision_bytes(precision);
  if (bytes > 0) return bytes;
  return fault(key, fmt::format("'{}': one of {} is expected", precision, fmt::join(model::precision_names(), ", ")));
}

}  // namespace

std::expected<model::CatalogueEngine, EngineFault> find_engine(const EngineNames& names, std::uint32_t kv_tokens_min) {
  auto catalogue = read_entries(names);
  if (!catalogue) return std::unexpected(catalogue.error());
  const auto found = find_model(names.model, *catalogue);
  if (!found) return std::unexpected(found.error());
  model::Question q;
  q.model = *found;
  if (const auto done = find_gpus(names.gpu, *catalogue, q); !done) return std::unexpected(done.error());
  q.precision = names.precision;
  if (q.precision.empty()) q.precision = q.device->flops_per_s.contains("fp8") ? "fp8" : "bf16";
  const auto weights = bytes_of("engine.precision", q.precision);
  if (!weights) return std::unexpected(weights.error());
  const auto kv = bytes_of("engine.kv_precision", names.kv_precision.empty() ? q.precision : names.kv_precision);
  if (!kv) return std::unexpected(kv.error());
  // Weights that are published smaller stay so.
  q.weight_bytes_per_param = std::min(*weights, std::max(0.5, q.model->weight_bytes_per_param));
  q.kv_bytes_per_element = *kv;
  auto engine = model::catalogue_engine(q, kv_tokens_min);
  if (!engine) return fault("engine.gpu", engine.error());
  return *engine;
}

}  // namespace kvd::cmd
