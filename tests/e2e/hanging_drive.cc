// A drive that stops answering, for a depot into which this library is preloaded: reads behind the head area of a
// flash file do not return while there is an empty file hang.lock beside it. io_uring is denied, so that reads come
// through preadv().
//
//   LD_PRELOAD=libkvd_hanging_drive.so kvdepot serve ...
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "io/testing/deny_syscall.h"

namespace {

constexpr off_t kHeadBytes = off_t{4} << 20;
constexpr char kTrigger[] = "hang.lock";  // a store's directory may hold such a file

__attribute__((constructor)) void deny_rings() {
  if (!kvd::io::deny_syscall(SYS_io_uring_setup, EPERM)) ::_exit(1);
}

bool hangs(int fd) {
  char link[32], path[4096];
  ::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = ::readlink(link, path, sizeof path - sizeof kTrigger);
  if (length <= 0) return false;
  path[length] = '\0';
  char* const name = ::strrchr(path, '/');
  if (name == nullptr) return false;
  ::memcpy(name + 1, kTrigger, sizeof kTrigger);
  return ::access(path, F_OK) == 0;
}

ssize_t read_or_hang(int fd, const iovec* pieces, int count, off_t offset) {
  while (offset >= kHeadBytes && hangs(fd)) ::usleep(10'000);
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
