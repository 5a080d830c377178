// Fuzzes the parsers of sizes and durations. What is read is within the limits that they promise.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/sizes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto bytes = kvd::parse_size(text);
  if (bytes && *bytes > std::uint64_t{1} << 62) std::abort();
  const auto duration = kvd::parse_duration(text);
  if (duration && *duration < kvd::Duration::zero()) std::abort();
  return 0;
}
