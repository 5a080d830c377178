// SharedMemory: the memory of a peer on the same host, mapped for reading: what its descriptors of bytes point into.
//
// A part of the mapping can be cut loose from the file: from then on it shows its own copy of what it showed, at the
// same address, whatever the peer does with the place. Meant for a mapping that nobody reads anything new from: again()
// gives another one of the same file. To that end it is a private mapping: the kernel puts a copy into the place of a
// page in one step, which can fail but leaves no moment, and no hole, in which a reader finds nothing.
//
// The file must be ordinary shared memory, sealed against shrinking, so that no read of it can fault because of what
// the peer does later, its end included. The memory of a pool lasts as long as the mapping; a window's (window.h) reads
// as zeros once its connection has ended. Places that the peer never wrote to take memory of whoever reads them. A
// forked child has neither descriptor nor mapping, and it is in no core dump. Constant after map(); any thread may
// read. What the bytes are and for how long they stay is the peer's business: whoever reads verifies what it has read.
#pragma once

#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "base/result.h"
#include "io/private_fd.h"

namespace kvd::net {

class SharedMemory {
 public:
  // Maps the whole file, which must have exactly `bytes`. kInvalid: not such a file;
  // kNoSpace: no address space.
  static Result<std::unique_ptr<SharedMemory>> map(io::PrivateFd file, std::uint64_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }
  // The same file mapped once more. kNoSpace.
  [[nodiscard]] Result<std::unique_ptr<SharedMemory>> again() const;
  // Enters those of the pages that `part` lies in into this process's page table that the file consists of, so that
  // who reads them first does not pay for that: about 0.4 us a page, next to nothing where they are huge. Pages that
  // the peer has never written to are left alone, as a read would take memory for them; how many bytes these are,
  // of `part` in whole pages (all of it where the kernel does not tell). Reads a byte a page. Any thread.
  [[nodiscard]] std::uint64_t prefault(Bytes part) const;
  // Cuts the pages that `part` lies in loose. Whoever reads them meanwhile reads the same bytes. kNoSpace: there is no
  // memory for all of them; the part still shows its bytes, those of the file where it was not cut. May be called again
  // for the same part. Takes about a microsecond a page.
  Status cut_loose(Bytes part) const;

 private:
  using File = std::shared_ptr<const io::PrivateFd>;
  SharedMemory(File file, Bytes bytes) : file_(std::move(file)), bytes_(bytes) {}
  static Result<std::unique_ptr<SharedMemory>> map_checked(File file, std::uint64_t bytes);

  File file_;  // one descriptor for all mappings of it
  Bytes bytes_;
};

}  // namespace kvd::net
