// Fuzzes the reader of catalogue files. A file that is refused changes nothing.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/catalogue.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  kvd::model::Catalogue catalogue;
  const auto added = catalogue.add({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!added && (added.error().text.empty() || !catalogue.model_names().empty())) std::abort();
  for (const auto& made : catalogue.classes()) {
    if (made.storage != "hbm" && catalogue.storage(made.storage) == nullptr) std::abort();
  }
  return 0;
}
