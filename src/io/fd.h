// UniqueFd: an owned file descriptor, closed when destroyed. Moves, does not copy. Thread-compatible.
#pragma once

#include <unistd.h>

#include <utility>

namespace kvd::io {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool ok() const noexcept { return fd_ >= 0; }
  // Gives the descriptor to the caller.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  // Closes what it holds and takes `fd`. Errors of close are ignored: what must be durable is synced before.
  void reset(int fd = -1) noexcept {
    const int old = std::exchange(fd_, fd);
    if (old >= 0) ::close(old);
  }

 private:
  int fd_ = -1;
};

}  // namespace kvd::io
