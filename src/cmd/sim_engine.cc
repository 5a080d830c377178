#include "cmd/sim_engine.h"

#include <charconv>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cmd/plan_options.h"

namespace kvd::cmd {

namespace {

std::unexpected<EngineFault> fault(const char* key, std::string text) {
  return std::unexpected(EngineFault{key, std::move(text)});
}

std::expected<model::Catalogue, EngineFault> read_entries(const EngineNames& names) {
  if (names.catalogue.empty()) return model::Catalogue::built_in();
  auto catalogue = read_catalogue({names.catalogue});
  if (!catalogue) return fault("engine.catalogue", catalogue.error());
  return std::move(*catalogue);
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
  return fault("engine.gpu",
               unknown_name("GPU", name, catalogue.device_names(), "add one with engine.catalogue = \"FILE\""));
}

}  // namespace

std::expected<model::CatalogueEngine, EngineFault> find_engine(const EngineNames& names, std::uint32_t kv_tokens_min) {
  auto catalogue = read_entries(names);
  if (!catalogue) return std::unexpected(catalogue.error());
  if (names.model.empty()) return fault("engine.gpu", "engine.model is expected, too");
  const auto found = find_model(*catalogue, names.model,
                                "add one with engine.model = \"FOLDER/config.json\" or engine.catalogue = \"FILE\"");
  if (!found) return fault("engine.model", found.error());
  model::Question q;
  q.model = *found;
  if (const auto done = find_gpus(names.gpu, *catalogue, q); !done) return std::unexpected(done.error());
  if (const auto done = set_precision(q, names.precision, names.kv_precision); !done) {
    const bool weights = done.error() == "precision";
    return fault(weights ? "engine.precision" : "engine.kv_precision",
                 fmt::format("'{}': one of {} is expected", weights ? names.precision : names.kv_precision,
                             fmt::join(model::precision_names(), ", ")));
  }
  auto engine = model::catalogue_engine(q, kv_tokens_min);
  if (!engine) return fault("engine.gpu", engine.error());
  return *engine;
}

}  // namespace kvd::cmd
