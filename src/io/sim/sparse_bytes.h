// SparseBytes: the bytes of a simulated disk, kept by pages of 4 KiB; what was never written reads as zero.
//
// A value owned by a SimDrive or a test. Any offset and length; memory grows with what is written. A copy shares its
// pages with the original until one of the two writes them, so that thousands of disks that differ in a few sectors
// cost little more than those sectors. Copies may live on other threads as long as only one thread uses each.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace kvd::io {

class SparseBytes {
 public:
  using Page = std::array<std::byte, kPageBytes>;

  // Fills `to` with the bytes from `offset` on.
  void read(std::uint64_t offset, MutableBytes to) const;
  void write(std::uint64_t offset, Bytes from);
  // Becomes equal to `other` in [offset, offset + length).
  void copy(const SparseBytes& other, std::uint64_t offset, std::uint64_t length);
  // The page of this number (offset / 4 KiB); null when it was never written.
  [[nodiscard]] const Page* page(std::uint64_t number) const noexcept;

 private:
  using Slot = std::pair<std::uint64_t, std::shared_ptr<Page>>;
  Page& writable(std::uint64_t number);

  std::vector<Slot> pages_;  // by page number
};

}  // namespace kvd::io
