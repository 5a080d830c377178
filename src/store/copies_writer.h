// CopiesWriter: rewrites the four copies of a structure (store/quorum.h) without blocking: a flush, a look at what is
// there, two copies, a flush, the other two, a flush. What is in force is written over last, so that at any moment two
// copies agree, whatever is torn or lost, also when rewrites are interrupted one after the other; the first flush is
// for what such a one has left.
//
// Belongs to the loop. It has no time limit: who waits for it has one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/bytes.h"
#include "base/result.h"
#include "io/disk.h"
#include "io/loop.h"
#include "store/aligned_buffer.h"
#include "store/format.h"

namespace kvd::store {

class CopiesWriter {
 public:
  // Fills a page with a copy. All copies have one generation, higher than any that was tried before, also in vain.
  using Encode = std::function<void(MutableBytes page, std::uint32_t copy)>;

  // Both are borrowed; copies lie `stride` apart. The disk is closed before this goes.
  CopiesWriter(io::Loop& loop, io::Disk& disk, std::uint64_t stride);

  [[nodiscard]] bool busy() const noexcept { return on_done_ != nullptr; }
  // Begins a rewrite; requires !busy(). `encode` is called before this returns. `on_done` comes from the loop: all
  // copies are durable, or something failed and the old or the new ones may be in force.
  void write(const Encode& encode, std::move_only_function<void(Status)> on_done);

 private:
  void next();
  void submit(io::DiskOp::Kind kind, std::uint32_t copy);
  void choose_order();
  void end(const Status& how);

  io::Loop& loop_;
  io::Disk& disk_;
  const std::uint64_t stride_;
  AlignedBuffer pages_;  // to be written
  AlignedBuffer found_;  // what is there; zeros where it cannot be read
  std::array<std::uint32_t, kSuperblockCopies> order_{};
  std::size_t step_ = 0;
  iovec buffer_{};
  io::DiskOp op_;
  std::move_only_function<void(Status)> on_done_;
  Status how_;  // of an operation that was refused
  io::Timer refused_;
};

// A rewrite that waits: it runs the loop, so it must not be used from a callback.
Status write_copies(io::Loop& loop, io::Disk& disk, std::uint64_t stride, const CopiesWriter::Encode& encode);

}  // namespace kvd::store
