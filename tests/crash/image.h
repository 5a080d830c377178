// Image: what lies on the simulated drives of a machine, with a hash of all of it that is kept up to date by every
// write. They are taken for one stretch of bytes: drive d begins at d * kDriveSpan.
//
// A value; copies share their pages (io/sim/sparse_bytes.h). One thread each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "io/sim/sparse_bytes.h"

namespace kvd::crash {

inline constexpr std::size_t kDrives = 3;  // two devices, and what has the list of them
inline constexpr std::uint64_t kDriveSpan = std::uint64_t{1} << 30;
inline constexpr std::size_t kListDrive = 2;

constexpr std::size_t drive_of(std::uint64_t offset) noexcept { return offset / kDriveSpan; }

class Image {
 public:
  // Any offset and length on one drive.
  void write(std::uint64_t offset, Bytes from);
  [[nodiscard]] const io::SparseBytes& bytes(std::size_t drive = 0) const noexcept { return drives_[drive]; }
  // Equal for equal bytes, whatever was written on the way; 64 bits of XXH3 per page, summed up.
  [[nodiscard]] std::uint64_t hash() const noexcept { return hash_; }

 private:
  [[nodiscard]] std::uint64_t page_hash(std::uint64_t number) const noexcept;

  std::array<io::SparseBytes, kDrives> drives_;
  std::uint64_t hash_ = 0;
};

}  // namespace kvd::crash
