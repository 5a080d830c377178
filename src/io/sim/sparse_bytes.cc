#include "io/sim/sparse_bytes.h"

#include <algorithm>
#include <cstring>

namespace kvd::io {

const SparseBytes::Page* SparseBytes::page(std::uint64_t number) const noexcept {
  const auto at = std::ranges::lower_bound(pages_, number, {}, &Slot::first);
  return at != pages_.end() && at->first == number ? at->second.get() : nullptr;
}

SparseBytes::Page& SparseBytes::writable(std::uint64_t number) {
  auto at = std::ranges::lower_bound(pages_, number, {}, &Slot::first);
  if (at == pages_.end() || at->first != number) at = pages_.emplace(at, number, std::make_shared<Page>());
  if (at->second.use_count() > 1) at->second = std::make_shared<Page>(*at->second);
  return *at->second;
}

void SparseBytes::read(std::uint64_t offset, MutableBytes to) const {
  while (!to.empty()) {
    const std::uint64_t within = offset % kPageBytes;
    const std::size_t length = std::min<std::size_t>(to.size(), kPageBytes - within);
    if (const Page* from = page(offset / kPageBytes)) {
      std::memcpy(to.data(), from->data() + within, length);
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
    std::memcpy(writable(offset / kPageBytes).data() + within, from.data(), length);
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
