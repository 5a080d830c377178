// What `kvdepot plan catalogue` prints: every entry with all that is known of it, and where that comes from. Pure.
#pragma once

#include <string>

#include "model/catalogue.h"

namespace kvd::cmd {

// Devices, models, links, storage, then classes: a line or two each, ends with a newline.
[[nodiscard]] std::string catalogue_text(const model::Catalogue& catalogue);
// The same as one JSON object with a list for each kind; SI units, keys as in the TOML files; of models what their
// config says.
[[nodiscard]] std::string catalogue_json(const model::Catalogue& catalogue);

}  // namespace kvd::cmd
