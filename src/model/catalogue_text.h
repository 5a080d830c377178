// The text of data/catalogue/*.toml, compiled in. catalogue_text.cc is made from catalogue_text.cc.in by the build.
#pragma once

#include <string_view>

namespace kvd::model {

[[nodiscard]] std::string_view built_in_models();
[[nodiscard]] std::string_view built_in_devices();
[[nodiscard]] std::string_view built_in_storage();

}  // namespace kvd::model
