// A drive that stops answering, for a depot into which this library is preloaded: reads behind the head area of the
// flash file never return. io_uring is denied, so that reads come through preadv().
//
//   LD_PRELOAD=libkvd_hanging_drive.so kvdepot serve ...
#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "io/testing/deny_syscall.h"

namespace {

constexpr off_t kHeadBytes = off_t{4} << 20;

__attribute__((constructor)) void deny_rings() {
  if (!kvd::io::deny_syscall(SYS_io_uring_setup, EPERM)) ::_exit(1);
}

ssize_t read_or_hang(int fd, const iovec* pieces, int count, off_t offset) {
  while (offset >= kHeadBytes) ::pause();
  return ::syscall(SYS_preadv, fd, pieces, count, offset, 0);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) ssize_t preadv(int fd, const iovec* pieces, int count, off_t offset) {
  return read_or_hang(fd, pieces, count, offset);
}

__attribute__((visibility("default"))) ssize_t preadv64(int fd, const iovec* pieces, int count, off64_t offset) {
  return read_or_hang(fd, pieces, count, offset);
}

}  // extern "C"
