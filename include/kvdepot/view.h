// View: slabs of records, to be read where they lie: in the pool of a depot on this host, without a copy, or, where
// that cannot be, in memory of the view's own.
//
// From Client::borrow() and take_view(). Read-only: writing to it ends the process. The bytes are what was put and do
// not change for as long as the view lives, whatever happens to the records (removed, evicted), to the connection or to
// the depot: the depot uses the memory for nothing else before the view is destroyed or this process has ended; where
// the connection was lost, before the last view of it is. When BorrowRequest::hold is over, a view that still lives
// turns into a copy, at the same addresses, and the depot gets its memory back. Views may outlive their client, after
// whose end nobody looks at `hold` any more.
//
// Any thread may read and destroy it. Memory: 8 bytes for each slab, 16 where they were not verified. A forked child
// must not read it; to destroy its copy there does nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvd {

class View {
 public:
  virtual ~View() = default;  // gives it back; the spans end with it
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  // The slab of key `key` (from 0, as asked for) in layer `layer` (number in the schema). Empty: the key has failed, or
  // was not asked for.
  [[nodiscard]] virtual std::span<const std::byte> slab(std::size_t key, std::uint16_t layer) const noexcept = 0;
  // Whether that slab is what was put, for borrows that were not verified (BorrowRequest::verify): reads it once, on
  // the calling thread, while it is about to be used, and compares its checksum. False: it is damaged, which the depot
  // is told of as long as the client lives, or empty. What was verified already is not read again.
  [[nodiscard]] virtual bool verify(std::size_t key, std::uint16_t layer) const noexcept = 0;
  // Some of it lies in the depot's pool now. False: it is a copy.
  [[nodiscard]] virtual bool borrowed() const noexcept = 0;

 protected:
  View() = default;
};

}  // namespace kvd
