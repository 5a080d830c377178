// What threads that wait for each other without sleeping want to know of the machine. Any thread.
#pragma once

namespace kvd {

// Whether another thread can run while this one spins: the process may use more than one core. A system call.
[[nodiscard]] bool has_other_cores() noexcept;

// One turn of a loop that looks at memory until another core has written to it.
inline void pause_core() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace kvd
