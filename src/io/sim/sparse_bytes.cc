#include "io/sim/sparse_bytes.h"

#include <algorithm>
#include <cstring>

namespace kvd::io {

void SparseBytes::read(std::uint64_t offset, MutableBytes to) const {
  while (!to.empty()) {
    const std::uint64_t within = offset % kPageBytes;
    const std::size_t length = std::min<std::size_t>(to.size(), kPageBytes - within);
    if (const auto page = pages_.find(offset / kPageBytes); page != pages_.end()) {
      std::memcpy(to.data(), page->second->data() + within, length);
    } else {
      std::memset(to.data(), 0, length);
    }
    offset += length;
    to = to.subspan(length);
  }
}

void SparseBytes::write(std::uint64_t offset, Bytes from) {
  while (!from.empty()) {
    const std::uint64_t within = offset % kPageBytes;
    const std::size_t length = std::min<std::size_t>(from.size(), kPageBytes - within);
    auto& page = pages_[offset / kPageBytes];
    if (page == nullptr) page = std::make_unique<Page>();
    std::memcpy(page->data() + within, from.data(), length);
    offset += length;
    from = from.subspan(length);
  }
}

void SparseBytes::copy(const SparseBytes& other, std::uint64_t offset, std::uint64_t length) {
  Page page;
  while (length > 0) {
    const std::size_t step = std::min<std::size_t>(length, kPageBytes);
    other.read(offset, MutableBytes(page.data(), step));
    write(offset, Bytes(page.data(), step));
    offset += step;
    length -= step;
  }
}

}  // namespace kvd::io
