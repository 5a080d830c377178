// SharedMemory: the memory of a peer on the same host, mapped for reading: what its descriptors of bytes point into.
//
// The file must be ordinary shared memory, sealed against shrinking, so that no read of it can fault because of what
// the peer does later. Places that the peer never wrote to take memory of whoever reads them. A forked child has
// neither descriptor nor mapping, and it is in no core dump. Constant after map(); any thread may read. What the bytes
// are and for how long they stay is the peer's business: whoever reads verifies what it has read.
#pragma once

#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "base/result.h"
#include "io/private_fd.h"

namespace kvd::net {

class SharedMemory {
 public:
  // Maps the whole file, which must have exactly `bytes`; the descriptor is closed. kInvalid: not such a file;
  // kNoSpace: no address space.
  static Result<std::unique_ptr<SharedMemory>> map(io::PrivateFd file, std::uint64_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }

 private:
  explicit SharedMemory(Bytes bytes) : bytes_(bytes) {}

  Bytes bytes_;
};

}  // namespace kvd::net
