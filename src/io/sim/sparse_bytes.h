// SparseBytes: the bytes of a simulated disk, kept by pages of 4 KiB; what was never written reads as zero.
//
// A value owned by a SimDrive. Any offset and length; memory grows with what is written.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "base/bytes.h"

namespace kvd::io {

class SparseBytes {
 public:
  // Fills `to` with the bytes from `offset` on.
  void read(std::uint64_t offset, MutableBytes to) const;
  void write(std::uint64_t offset, Bytes from);
  // Becomes equal to `other` in [offset, offset + length).
  void copy(const SparseBytes& other, std::uint64_t offset, std::uint64_t length);

 private:
  using Page = std::array<std::byte, kPageBytes>;
  std::unordered_map<std::uint64_t, std::unique_ptr<Page>> pages_;
};

}  // namespace kvd::io
