// The superblock copies of a flash file: which of the four is in force, and what a file without a valid one is.
//
// Pure, any thread. The rules are those of "Superblock" in docs/formats/flash-log.md; opening a store and looking into
// one from outside share them.
#pragma once

#include <array>
#include <cstdint>

#include "base/result.h"
#include "store/format.h"

namespace kvd::store {

using SuperblockCopies = std::array<Result<Superblock>, kSuperblockCopies>;

// What the superblock copies of an existing file say.
struct SuperblockVerdict {
  // kLost: one was there and none is valid; kEmpty: nothing but zeros, or no file.
  enum class Kind : std::uint8_t { kStore, kEmpty, kLost, kForeign, kNewer };
  Kind kind = Kind::kEmpty;
  Superblock superblock;
  std::uint32_t copies = 0;  // that agree with it
};

// `any_magic`: a copy carries the magic, valid or not; `zeros`: all copies are zeros.
SuperblockVerdict judge_superblocks(const SuperblockCopies& copies, bool any_magic, bool zeros);

}  // namespace kvd::store
