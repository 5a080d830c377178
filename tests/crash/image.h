// Image: what lies on a simulated drive, with a hash of all of it that is kept up to date by every write.
//
// A value; copies share their pages (io/sim/sparse_bytes.h). One thread each.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "io/sim/sparse_bytes.h"

namespace kvd::crash {

class Image {
 public:
  // Any offset and length.
  void write(std::uint64_t offset, Bytes from);
  [[nodiscard]] const io::SparseBytes& bytes() const noexcept { return bytes_; }
  // Equal for equal bytes, whatever was written on the way; 64 bits of XXH3 per page, summed up.
  [[nodiscard]] std::uint64_t hash() const noexcept { return hash_; }

 private:
  [[nodiscard]] std::uint64_t page_hash(std::uint64_t number) const noexcept;

  io::SparseBytes bytes_;
  std::uint64_t hash_ = 0;
};

}  // namespace kvd::crash
