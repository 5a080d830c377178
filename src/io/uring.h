// Uring: one io_uring instance for one file, made with the best flags the kernel has, and its orderly end.
//
// Owned by a UringDisk. Created disabled: the thread that first calls enable() (the loop's) becomes its only issuer.
// Every other call comes from that thread; io_uring answers -EEXIST to another one, and the owner then closes this ring
// and makes a new one.
#pragma once

#include <liburing.h>

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "io/fd.h"

namespace kvd::io {

class Uring {
 public:
  // A ring with room for `entries` submissions and twice as many completions, in which `file_fd` is registered as file
  // kFileIndex. kIo with the errno when the kernel has no io_uring, forbids it or is too old (before 5.6).
  static Result<Uring> create(int file_fd, std::uint32_t entries);
  Uring(Uring&&) = default;
  Uring& operator=(Uring&&) = delete;
  ~Uring();

  static constexpr int kFileIndex = 0;

  // Makes the calling thread the issuer. kIo when the kernel refuses.
  Status enable();
  [[nodiscard]] io_uring& ring() noexcept { return *ring_; }
  // An eventfd that turns readable when there are completions or, in deferred mode, work that makes some once
  // io_uring_get_events() is called. (epoll on the ring itself is not told of such work: kernel 6.18.)
  [[nodiscard]] int wake_fd() const noexcept { return wake_.get(); }
  // Makes wake_fd() unreadable until something new comes.
  void clear_wake() noexcept;
  // Registers parts of memory with which operations can then name them: the kernel looks their pages up once instead of
  // for every operation, and holds them. kIo with errno: too old a kernel (before 5.19), or a limit on locked memory.
  Status begin_buffers(std::uint32_t count);
  Status set_buffer(std::uint32_t index, std::span<std::byte> memory);
  // After io_uring_get_events(): whether the kernel, which does a limited amount at a time (20 items since 6.13), has
  // deferred work left. It does not signal wake_fd() again for that. May say so when nothing is left: see UringDisk.
  [[nodiscard]] bool more_deferred() const noexcept;
  // How completions are run: "deferred" (kernel 6.1: only when the issuer asks), "cooperative" (5.19) or
  // "interrupting".
  [[nodiscard]] const char* mode() const noexcept { return mode_; }

  // Gives the ring up while operations are in the kernel, and returns when none of them can touch memory any more.
  // Works on any thread. Blocks; their results are lost.
  static void abandon(std::unique_ptr<Uring> uring);

 private:
  Uring(std::unique_ptr<io_uring> ring, const char* mode) : ring_(std::move(ring)), mode_(mode) {}
  Status register_fds(int file_fd);

  std::unique_ptr<io_uring> ring_;  // null after a move
  const char* mode_ = "";
  UniqueFd wake_;
  // Reads end of file once the kernel has freed the ring: the other end is registered in it and open nowhere else.
  UniqueFd freed_;
};

}  // namespace kvd::io
