#include "crash/image.h"

#include <xxhash.h>

#include <algorithm>

namespace kvd::crash {

std::uint64_t Image::page_hash(std::uint64_t number) const noexcept {
  static constexpr io::SparseBytes::Page kZeros{};
  constexpr std::uint64_t kSpan = kDriveSpan / kPageBytes;
  const io::SparseBytes::Page* page = drives_[number / kSpan].page(number % kSpan);
  return XXH3_64bits_withSeed(page == nullptr ? kZeros.data() : page->data(), kPageBytes, number);
}

void Image::write(std::uint64_t offset, Bytes from) {
  while (!from.empty()) {
    const std::uint64_t number = offset / kPageBytes;
    const std::size_t length = std::min<std::size_t>(from.size(), kPageBytes - offset % kPageBytes);
    hash_ -= page_hash(number);
    drives_[drive_of(offset)].write(offset % kDriveSpan, from.first(length));
    hash_ += page_hash(number);
    offset += length;
    from = from.subspan(length);
  }
}

}  // namespace kvd::crash
