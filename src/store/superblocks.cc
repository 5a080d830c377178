#include "store/superblocks.h"

#include <algorithm>

#include "store/aligned_buffer.h"

namespace kvd::store {

SuperblockScan::SuperblockScan() { copies_.fill(fail(Code::kCorrupt, "superblock copy is missing")); }

void SuperblockScan::take(std::uint32_t copy, Bytes page) {
  copies_[copy] = parse_superblock(page, copy);
  any_magic_ = any_magic_ || has_superblock_magic(page);
  // A torn first write may have left nothing but the sector with the checksum: that is no foreign file.
  zeros_ = zeros_ && std::ranges::all_of(page.first(kPageChecksumAt), [](std::byte b) { return b == std::byte{0}; });
}

// It counts as a damaged one: that is what the other three are for.
void SuperblockScan::take_unreadable(std::uint32_t copy, const Error& error) {
  copies_[copy] = fail(Code::kCorrupt, "superblock copy cannot be read");
  read_error_ = error;
}

SuperblockVerdict SuperblockScan::verdict() const {
  SuperblockVerdict found;
  std::uint32_t newer = 0, valid = 0;
  for (const auto& copy : copies_) {
    if (!copy) {
      newer += copy.error().code == Code::kStale ? 1 : 0;
      continue;
    }
    ++valid;
    const auto agree = static_cast<std::uint32_t>(std::ranges::count_if(
        copies_, [&](const auto& other) { return other && other->generation == copy->generation; }));
    const bool quorum = agree >= 2;
    const bool have_quorum = found.copies >= 2;
    const bool newest = copy->generation > found.superblock.generation;
    if (found.copies == 0 || (quorum && !have_quorum) || (quorum == have_quorum && newest)) {
      found.superblock = *copy;
      found.copies = agree;
    }
  }
  // One copy that claims to be newer is damage when others are fine; nothing but such copies is a newer store.
  using Kind = SuperblockVerdict::Kind;
  if (newer >= 2 || (newer == 1 && valid == 0)) {
    found.kind = Kind::kNewer;
  } else if (valid > 0) {
    found.kind = Kind::kStore;
  } else if (!zeros_ && !any_magic_) {
    found.kind = Kind::kForeign;
  } else if (read_error_.code != Code::kOk) {
    found.kind = Kind::kUnreadable;
  } else {
    found.kind = any_magic_ ? Kind::kLost : Kind::kEmpty;
  }
  return found;
}

SuperblockScan scan_superblocks(std::uint64_t bytes, const std::function<Status(std::uint64_t, MutableBytes)>& read) {
  SuperblockScan copies;
  const AlignedBuffer page(kPageBytes);
  for (std::uint32_t i = 0; i < kSuperblockCopies; ++i) {
    const std::uint64_t offset = i * kSuperblockStride;
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
