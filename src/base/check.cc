#include "base/check.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace kvd {
namespace {

void put(const char* text) noexcept {
  // A failed write while aborting cannot be reported anywhere.
  [[maybe_unused]] const auto n = ::write(STDERR_FILENO, text, std::strlen(text));
}

}  // namespace

void check_failed(const char* expr, const char* file, int line) noexcept {
  char digits[12];
  int at = static_cast<int>(sizeof digits) - 1;
  digits[at] = '\0';
  for (int rest = line; at > 0 && (rest > 0 || at == static_cast<int>(sizeof digits) - 1); rest /= 10)
    digits[--at] = static_cast<char>('0' + rest % 10);
  put("kvdepot: check failed: ");
  put(expr);
  put(" at ");
  put(file);
  put(":");
  put(digits + at);
  put("\n");
  std::abort();
}

}  // namespace kvd
