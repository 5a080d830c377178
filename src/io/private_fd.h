// PrivateFd: an owned file descriptor that a forked child does not keep: the child closes its copy as it begins.
//
// Close-on-exec is not enough for a child that never calls exec: locks (flock) and connections last until every copy of
// their descriptor is closed, so such a child would keep a dead parent's directory locked and its peers connected. The
// one list of all PrivateFds of the process is global, because fork handlers are given nothing. Children made by
// clone() itself, without the C library's fork(), keep their copies. Any thread; one PrivateFd belongs to one thread at
// a time.
#pragma once

#include "io/fd.h"

namespace kvd::io {

class PrivateFd {
 public:
  PrivateFd() = default;
  explicit PrivateFd(UniqueFd fd);
  ~PrivateFd() { reset(); }
  PrivateFd(PrivateFd&& other) noexcept;
  PrivateFd& operator=(PrivateFd&& other) noexcept;

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool ok() const noexcept { return fd_ >= 0; }
  void reset() noexcept;

 private:
  friend struct PrivateFds;
  void take(PrivateFd& other) noexcept;

  int fd_ = -1;
  PrivateFd* before_ = nullptr;  // in the list, while there is a descriptor
  PrivateFd* after_ = nullptr;
};

}  // namespace kvd::io
