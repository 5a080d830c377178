// Fuzzes the parser of an embedded depot's address. What is read names an absolute directory whose socket has a name.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "embed/directory.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  const auto directory = kvd::embed::parse_directory({reinterpret_cast<const char*>(data), size});
  if (!directory) return 0;
  const bool sound = directory->path.size() > 1 && directory->path.starts_with('/') &&
                     directory->socket_path().size() <= 107 && directory->pool_bytes <= std::uint64_t{1} << 62 &&
                     directory->flash_bytes <= std::uint64_t{1} << 62;
  if (!sound) std::abort();
  return 0;
}
