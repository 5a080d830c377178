// A fuzz target with a planted fault, to test that replay_main.cc runs targets and finds faults.
// "boo" and a byte above 0x7f abort; the corpus holds "boot", one bit flip away from such an input.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (text.starts_with("boo") && size > 3 && static_cast<unsigned char>(text[3]) > 0x7f) {
    std::abort();
  }
  return 0;
}
