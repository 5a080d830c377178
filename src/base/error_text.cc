#include "base/error_text.h"

#include <string.h>

namespace kvd {

std::string error_text(int sys_errno) {
  const char* const words = ::strerrordesc_np(sys_errno);
  return words == nullptr ? "error " + std::to_string(sys_errno) : words;
}

std::string error_text(const Error& error) {
  return error.sys_errno == 0 ? error.what : error.what + (": " + error_text(error.sys_errno));
}

}  // namespace kvd
