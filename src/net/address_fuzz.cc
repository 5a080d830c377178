// Fuzzes the parser of addresses. What is read can be written, and reads the same again.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "net/address.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  const auto address = kvd::net::parse_address({reinterpret_cast<const char*>(data), size});
  if (!address) return 0;
  const auto again = kvd::net::parse_address(address->text());
  if (!again || again->kind != address->kind || again->host != address->host || again->port != address->port ||
      again->path != address->path || address->path.size() > 107)
    std::abort();
  return 0;
}
