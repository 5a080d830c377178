#include "block/prefetch.h"

namespace kvd::block {

bool gains_by_fetching() noexcept {
#if defined(__x86_64__)
  static const bool intel = [] {
    __builtin_cpu_init();
    return __builtin_cpu_is("intel") != 0;
  }();
  return intel;
#else
  return false;
#endif
}

}  // namespace kvd::block
