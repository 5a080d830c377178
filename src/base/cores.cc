#include "base/cores.h"

#include <sched.h>

namespace kvd {

bool has_other_cores() noexcept {
  cpu_set_t cores;
  return ::sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) > 1;
}

}  // namespace kvd
