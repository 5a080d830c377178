// StoreReader: a store's directory seen from outside, without changing a byte of it: what `kvdepot inspect` and
// `kvdepot verify` stand on. Bytes are decoded by the parsers that recovery uses (store/format.h) and by nothing else.
//
// Opens flash.kvd for reading only, by direct I/O where the file system allows (what is checked is what the device
// holds, and the page cache stays as it is). While no process holds the directory it takes a shared lock on LOCK, so
// that no depot can start under it; LOCK is never created nor written. Where a depot runs, in_use() tells, and what is
// read may change meanwhile.
// open() blocks; everything after it is const, blocks where it reads, and may be called from any thread at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/fd.h"
#include "store/format.h"
#include "store/superblocks.h"

namespace kvd::store {

class StoreReader {
 public:
  // On error `why` is one line that says what is wrong and what to do. kNotFound: no such directory, or no store in it;
  // kInvalid: not a store's file, or an empty one; kStale: of a newer version; kCorrupt: a store without a valid
  // superblock; kIo: cannot be read.
  static Result<StoreReader> open(const std::string& dir, std::string& why);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }  // of flash.kvd
  [[nodiscard]] const Superblock& superblock() const noexcept { return verdict_.in_force; }
  [[nodiscard]] const FormatSeeds& seeds() const noexcept { return seeds_; }
  // What is wrong with superblock copy i; null when it is fine, be it an older one (a rewrite was interrupted).
  [[nodiscard]] const char* copy_damage(std::uint32_t i) const noexcept { return copy_damage_[i]; }
  [[nodiscard]] std::uint32_t copies_that_agree() const noexcept { return verdict_.copies; }
  // A process holds the directory: which one, as far as its lock file says.
  [[nodiscard]] bool in_use() const noexcept { return !holder_.empty(); }
  [[nodiscard]] const std::string& holder() const noexcept { return holder_; }
  // Of the file as it is now: less than the superblock says when somebody has cut it.
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return file_bytes_; }
  [[nodiscard]] std::uint32_t segments() const noexcept { return static_cast<std::uint32_t>(superblock().segments); }
  [[nodiscard]] std::uint64_t segment_bytes() const noexcept { return superblock().segment_bytes; }
  [[nodiscard]] std::uint32_t segment_pages() const noexcept {
    return static_cast<std::uint32_t>(segment_bytes() / kPageBytes);
  }
  [[nodiscard]] std::uint64_t offset_of(std::uint32_t segment, std::uint32_t page = 0) const noexcept {
    return kHeadBytes + segment * segment_bytes() + std::uint64_t{page} * kPageBytes;
  }

  // Offset, address and length are multiples of 4 KiB. kIo with errno; with errno 0 when the file ends before.
  Status read(std::uint64_t offset, MutableBytes to) const;

 private:
  StoreReader(std::string path, io::UniqueFd file, io::UniqueFd lock, std::uint64_t bytes)
      : path_(std::move(path)), file_(std::move(file)), lock_(std::move(lock)), file_bytes_(bytes), seeds_(Uuid{}) {}
  Status read_superblocks(std::string& why);

  std::string path_;
  io::UniqueFd file_;
  io::UniqueFd lock_;
  std::string holder_;
  std::uint64_t file_bytes_;
  SuperblockVerdict verdict_;
  std::array<const char*, kSuperblockCopies> copy_damage_{};
  FormatSeeds seeds_;
};

}  // namespace kvd::store
