// Fuzzes the reader of config.json. What is read has layers and finite costs.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto model = kvd::model::read_hf_config(text, "fuzz", "fuzz");
  if (!model) {
    if (model.error().text.empty()) std::abort();
    return 0;
  }
  const bool sane = model->layers() > 0 && std::isfinite(model->params()) &&
                    model->params_active() <= model->params() && std::isfinite(model->kv_bytes(1e6, 2)) &&
                    model->kv_token_bytes(2) >= 0;
  if (!sane || kvd::model::flops_by_kind(*model).empty()) std::abort();
  return 0;
}
