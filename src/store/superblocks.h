// The superblock copies of a flash file: which of the four is in force, and what a file without a valid one is.
//
// Pure, any thread. The rules are those of "Superblock" in docs/formats/flash-log.md; opening a store and looking into
// one from outside share them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "base/bytes.h"
#include "base/result.h"
#include "store/format.h"

namespace kvd::store {

// What the superblock copies of an existing file say.
struct SuperblockVerdict {
  // kLost: one was there and none is valid; kEmpty: nothing but zeros, or no file. kUnreadable: as both, but some could
  // not be read, and may be those that hold the store.
  enum class Kind : std::uint8_t { kStore, kEmpty, kLost, kForeign, kNewer, kUnreadable };
  Kind kind = Kind::kEmpty;
  Superblock superblock;
  std::uint32_t copies = 0;  // that agree with it
};

// Takes the copies of a file, each as it was read or why it could not be; those that are not told are missing.
class SuperblockScan {
 public:
  SuperblockScan();
  void take(std::uint32_t copy, Bytes page);
  void take_unreadable(std::uint32_t copy, const Error& error);

  [[nodiscard]] SuperblockVerdict verdict() const;
  [[nodiscard]] const Result<Superblock>& copy(std::uint32_t i) const { return copies_[i]; }
  // Of the last copy that could not be read.
  [[nodiscard]] const Error& read_error() const noexcept { return read_error_; }

 private:
  std::array<Result<Superblock>, kSuperblockCopies> copies_;
  bool any_magic_ = false;  // a copy carries the magic, valid or not
  bool zeros_ = true;       // all that could be read
  Error read_error_{.code = Code::kOk};
};

// Takes all copies of a file of `bytes`. `read` fills a page from an offset.
SuperblockScan scan_superblocks(std::uint64_t bytes, const std::function<Status(std::uint64_t, MutableBytes)>& read);

}  // namespace kvd::store
