// A structure of one page that lies in four copies and is rewritten in place (superblock, list of devices): which copy
// is in force, and what a file without a valid one is. Rewriting: store/copies_writer.h.
//
// Pure, any thread. The rules are those of "Superblock" in docs/formats/flash-log.md; opening a store and looking into
// one from outside share them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>

#include "base/bytes.h"
#include "base/result.h"
#include "store/aligned_buffer.h"
#include "store/format.h"

namespace kvd::store {

// kLost: a copy was there and none is valid; kEmpty: nothing but zeros, or no file. kUnreadable: as both, but some
// could not be read, and may be those that hold it.
enum class CopiesKind : std::uint8_t { kValid, kEmpty, kLost, kForeign, kNewer, kUnreadable };

// How many copies agree with each (itself among them; 0: it is not valid), and which is in force: one with which
// another agrees before one that stands alone, then the one of the highest generation.
struct CopiesChoice {
  std::array<std::uint32_t, kSuperblockCopies> agree{};
  std::uint32_t best = 0;  // where any is valid
};
// valid(i); alike(i, j) of valid copies; generation(i) of a valid one.
template <class Valid, class Alike, class Generation>
CopiesChoice choose_copy(Valid valid, Alike alike, Generation generation) {
  CopiesChoice choice;
  for (std::uint32_t i = 0; i < kSuperblockCopies; ++i) {
    if (!valid(i)) continue;
    for (std::uint32_t j = 0; j < kSuperblockCopies; ++j) choice.agree[i] += valid(j) && alike(i, j) ? 1 : 0;
    const std::uint32_t have = choice.agree[choice.best];
    const bool quorum = choice.agree[i] >= 2, have_quorum = have >= 2;
    if (have == 0 || (quorum && !have_quorum) || (quorum == have_quorum && generation(i) > generation(choice.best)))
      choice.best = i;
  }
  return choice;
}

// What the copies in an existing file say.
template <class T>
struct CopiesVerdict {
  using Kind = CopiesKind;
  Kind kind = Kind::kEmpty;
  T in_force;
  std::uint32_t copies = 0;  // that agree with it
  // The highest of all valid copies, also of those that a rewrite left which was interrupted: the next one is above it,
  // so that no two copies of one generation differ.
  std::uint64_t generation_max = 0;
};

// Takes the copies of a file, each as it was read or why it could not be; those that are not told are missing.
// `T` has a generation and ==, for which it does not count which copy it is; `kParse(page, copy)` gives one, or
// kCorrupt, or kStale for one of a newer version.
template <class T, std::uint64_t kMagic, auto kParse>
class CopiesScan {
 public:
  using Value = T;

  CopiesScan() { copies_.fill(fail(Code::kCorrupt, "copy is missing")); }

  void take(std::uint32_t copy, Bytes page) {
    copies_[copy] = kParse(page, copy);
    any_magic_ = any_magic_ || load<std::uint64_t>(page.data()) == kMagic;
    // A torn first write may have left nothing but the sector with the checksum: that is no foreign file.
    zeros_ = zeros_ && std::ranges::all_of(page.first(kPageChecksumAt), [](std::byte b) { return b == std::byte{0}; });
  }
  // It counts as a damaged one: that is what the other three are for.
  void take_unreadable(std::uint32_t copy, const Error& error) {
    copies_[copy] = fail(Code::kCorrupt, "copy cannot be read");
    read_error_ = error;
  }

  [[nodiscard]] CopiesVerdict<T> verdict() const;
  [[nodiscard]] const Result<T>& copy(std::uint32_t i) const { return copies_[i]; }
  // Of the last copy that could not be read.
  [[nodiscard]] const Error& read_error() const noexcept { return read_error_; }

 private:
  std::array<Result<T>, kSuperblockCopies> copies_;
  bool any_magic_ = false;  // a copy carries the magic, valid or not
  bool zeros_ = true;       // all that could be read
  Error read_error_{.code = Code::kOk};
};

template <class T, std::uint64_t kMagic, auto kParse>
CopiesVerdict<T> CopiesScan<T, kMagic, kParse>::verdict() const {
  CopiesVerdict<T> found;
  std::uint32_t newer = 0, valid = 0;
  for (const auto& copy : copies_) {
    if (!copy) {
      newer += copy.error().code == Code::kStale ? 1 : 0;
      continue;
    }
    ++valid;
    found.generation_max = std::max(found.generation_max, copy->generation);
  }
  if (valid > 0) {
    // By all that they say: stores before this one used a generation again that had been tried in vain.
    const CopiesChoice choice = choose_copy([this](auto i) { return copies_[i].has_value(); },
                                            [this](auto i, auto j) { return *copies_[i] == *copies_[j]; },
                                            [this](auto i) { return copies_[i]->generation; });
    found.in_force = *copies_[choice.best];
    found.copies = choice.agree[choice.best];
  }
  // One copy that claims to be newer is damage when others are fine; nothing but such copies is a newer store.
  if (newer >= 2 || (newer == 1 && valid == 0)) {
    found.kind = CopiesKind::kNewer;
  } else if (valid > 0) {
    found.kind = CopiesKind::kValid;
  } else if (!zeros_ && !any_magic_) {
    found.kind = CopiesKind::kForeign;
  } else if (read_error_.code != Code::kOk) {
    found.kind = CopiesKind::kUnreadable;
  } else {
    found.kind = any_magic_ ? CopiesKind::kLost : CopiesKind::kEmpty;
  }
  return found;
}

// Takes all copies, `stride` apart, of a file of `bytes`. `read` fills a page from an offset.
template <class Scan>
Scan scan_copies(std::uint64_t bytes, std::uint64_t stride,
                 const std::function<Status(std::uint64_t, MutableBytes)>& read) {
  Scan copies;
  const AlignedBuffer page(kPageBytes);
  for (std::uint32_t i = 0; i < kSuperblockCopies; ++i) {
    const std::uint64_t offset = i * stride;
    if (offset + kPageBytes > bytes) continue;
    if (const auto status = read(offset, page.span()); !status) {
      copies.take_unreadable(i, status.error());
    } else {
      copies.take(i, page.span());
    }
  }
  return copies;
}

}  // namespace kvd::store
