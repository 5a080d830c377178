// Makes the kernel refuse a system call: how tests see what happens on machines without io_uring, direct I/O and so on.
//
// A seccomp filter holds for the calling thread and its later children until they end, so a test calls this on a
// std::thread of its own. Tests that cannot install a filter (deny_syscall is false) skip.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvd::io {

// From now on `number` fails with `error` on this thread, when bits of `mask` are set in its argument `arg` (low 32
// bits), or always with a mask of 0.
inline bool deny_syscall(long number, int error, unsigned arg = 0, std::uint32_t mask = 0) {
  const auto arg_at = static_cast<std::uint32_t>(offsetof(seccomp_data, args) + arg * sizeof(std::uint64_t));
  const auto deny = SECCOMP_RET_ERRNO | (static_cast<std::uint32_t>(error) & SECCOMP_RET_DATA);
  std::array<sock_filter, 6> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, arg_at),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, mask, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, deny),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  // Without a mask there is no test of the argument.
  if (mask == 0) program[3] = BPF_JUMP(BPF_JMP | BPF_JA, 0, 0, 0);
  const sock_fprog filter{.len = static_cast<unsigned short>(program.size()), .filter = program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace kvd::io
