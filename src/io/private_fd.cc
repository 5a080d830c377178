#include "io/private_fd.h"

#include <pthread.h>

#include <mutex>

namespace kvd::io {

// The list, and what fork() calls. The mutex is held across a fork, so that the child finds the list whole.
struct PrivateFds {
  static PrivateFds& all() {
    static PrivateFds* const fds = new PrivateFds;  // never destroyed: a fork may come at any time
    return *fds;
  }
  PrivateFds() { ::pthread_atfork(&PrivateFds::before_fork, &PrivateFds::in_parent, &PrivateFds::in_child); }

  void link(PrivateFd& fd) noexcept {
    fd.before_ = nullptr;
    fd.after_ = first;
    if (first != nullptr) first->before_ = &fd;
    first = &fd;
  }
  void unlink(PrivateFd& fd) noexcept {
    (fd.before_ == nullptr ? first : fd.before_->after_) = fd.after_;
    if (fd.after_ != nullptr) fd.after_->before_ = fd.before_;
    fd.before_ = fd.after_ = nullptr;
  }

  static void before_fork() { all().mutex.lock(); }
  static void in_parent() { all().mutex.unlock(); }
  static void in_child() {
    PrivateFds& fds = all();
    while (PrivateFd* fd = fds.first) {
      fds.unlink(*fd);
      ::close(std::exchange(fd->fd_, -1));
    }
    fds.mutex.unlock();
  }

  std::mutex mutex;
  PrivateFd* first = nullptr;
};

PrivateFd::PrivateFd(UniqueFd fd) {
  PrivateFds& fds = PrivateFds::all();
  const std::lock_guard lock(fds.mutex);
  fd_ = fd.release();
  if (fd_ >= 0) fds.link(*this);
}

PrivateFd::PrivateFd(PrivateFd&& other) noexcept { take(other); }

PrivateFd& PrivateFd::operator=(PrivateFd&& other) noexcept {
  if (this == &other) return *this;
  reset();
  take(other);
  return *this;
}

void PrivateFd::take(PrivateFd& other) noexcept {
  PrivateFds& fds = PrivateFds::all();
  const std::lock_guard lock(fds.mutex);
  if (other.fd_ < 0) return;
  fds.unlink(other);
  fd_ = std::exchange(other.fd_, -1);
  fds.link(*this);
}

void PrivateFd::reset() noexcept {
  if (fd_ < 0) return;
  PrivateFds& fds = PrivateFds::all();
  const std::lock_guard lock(fds.mutex);
  fds.unlink(*this);
  ::close(std::exchange(fd_, -1));
}

}  // namespace kvd::io
