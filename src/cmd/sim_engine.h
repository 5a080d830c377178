// The engine of a simulated fleet by the names of the catalogue: engine.model, engine.gpu, engine.precision. Reads
// model and catalogue files.
#pragma once

#include <cstdint>
#include <expected>
#include <string>

#include "model/catalogue_engine.h"

namespace kvd::cmd {

// As typed, "" = not given; paths as this process finds them.
struct EngineNames {
  std::string model;         // of the catalogue, or a path that ends in .json: a Hugging Face config.json
  std::string gpu;           // NAME or NAME:COUNT
  std::string precision;     // "" = fp8 where the GPU has it, else bf16
  std::string kv_precision;  // "" = as precision
  std::string catalogue;     // a TOML file with entries of the user's own
};

// The key of [engine] that is wrong, and what was expected there.
struct EngineFault {
  std::string key;
  std::string text;
};

// Faults: names that are not known (with the nearest that are, and how to add one), files that cannot be read, a model
// that does not fit its GPUs with `kv_tokens_min` tokens (with the arithmetic).
std::expected<model::CatalogueEngine, EngineFault> find_engine(const EngineNames& names, std::uint32_t kv_tokens_min);

}  // namespace kvd::cmd
