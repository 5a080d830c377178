// Arena: memory through which one client of the same host hands over the slabs that it puts. The depot makes it, for
// one connection, and maps it for reading; the client maps it for writing. What lies where is the client's business.
//
// Whoever reads it has to expect that the other side writes meanwhile: bytes are copied out once, and what is looked at
// is the copy (node/put_op.h). It keeps its size, so no access faults. Each side's mapping ends with the object. The
// memory goes with the depot's, whether or not its client still holds the file: it is charged to who touched it first,
// which may be the depot. One thread each.
#pragma once

#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "base/result.h"
#include "io/private_fd.h"

namespace kvd::net {

class Arena {
 public:
  static constexpr std::uint64_t kBytesMin = std::uint64_t{64} << 10;
  static constexpr std::uint64_t kBytesMax = std::uint64_t{64} << 20;  // as of a window (window.h)

  // A new one, the depot's, for reading. Requires kBytesMin <= bytes <= kBytesMax. kNoSpace, kIo.
  static Result<std::unique_ptr<Arena>> create(std::uint64_t bytes);
  // The depot's, for writing, on the client's side. kInvalid: not a memory file that keeps its size, or not of a size
  // that arenas have; kNoSpace.
  static Result<std::unique_ptr<Arena>> map(io::PrivateFd file, std::uint64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] Bytes bytes() const noexcept { return {base_, size_}; }
  // Requires map().
  [[nodiscard]] MutableBytes writable() const noexcept;

  // What the client is given; the depot's side has it.
  [[nodiscard]] int fd() const noexcept { return file_.get(); }

 private:
  Arena(io::PrivateFd file, std::byte* base, std::uint64_t size, bool writable);

  io::PrivateFd file_;  // the depot's
  std::byte* base_;
  std::uint64_t size_;
  bool writable_;
};

}  // namespace kvd::net
