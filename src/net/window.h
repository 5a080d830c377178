// Window: memory in which a depot shows one client of the same host what it gets, and nothing else. The depot makes it,
// for one connection, and copies slabs into it; the client maps it for reading (shared_memory.h).
//
// Stretches of it are taken in a ring: the one that was taken first is the first whose place is taken again, however
// late it is given back. What a client sees in a place that it has given back, or too late, is the next stretch's
// bytes: it verifies what it reads. A client that writes to it harms itself alone: nothing is read here. (A seal
// against that would keep the memory from being given back.) The memory goes with this object, whether or not the
// client still holds the file. One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "base/result.h"
#include "io/private_fd.h"

namespace kvd::net {

class Window {
 public:
  static constexpr std::uint64_t kBytesMin = std::uint64_t{64} << 10;
  // What its end costs the loop: 4 ms for 16 MiB that were written to, 16 for 64 (Linux 6.18, a virtual machine).
  static constexpr std::uint64_t kBytesMax = std::uint64_t{64} << 20;

  // Requires kBytesMin <= bytes <= kBytesMax. kNoSpace, kIo.
  static Result<std::unique_ptr<Window>> create(std::uint64_t bytes);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  struct Stretch {
    std::uint64_t id = 0;  // never reused
    std::uint64_t offset = 0;
    MutableBytes bytes{};
  };
  // The next `bytes` bytes, more than none, in one piece. Empty: so many are not free; up to size() they are once
  // everything has been given back.
  std::optional<Stretch> take(std::uint64_t bytes);
  // Nobody reads stretch `id` any more. Once for each.
  void give_back(std::uint64_t id);

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  // Up to here it has been written to, so far as note_written() was told: beyond it each page is made by its first
  // write.
  [[nodiscard]] std::uint64_t touched() const noexcept { return touched_; }
  void note_written(std::uint64_t end) noexcept { touched_ = std::max(touched_, end); }
  // What the client is given.
  [[nodiscard]] int fd() const noexcept { return file_.get(); }

 private:
  struct Taken {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    bool free = false;
  };
  Window(io::PrivateFd file, std::byte* base, std::uint64_t size) noexcept;

  io::PrivateFd file_;
  std::byte* base_;
  std::uint64_t size_;
  std::uint64_t touched_ = 0;
  std::deque<Taken> taken_;     // in the order of the ring; the first one is not free
  std::uint64_t first_id_ = 1;  // of taken_
};

}  // namespace kvd::net
