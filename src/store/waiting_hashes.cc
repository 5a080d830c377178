#include "store/waiting_hashes.h"

#include "base/check.h"

namespace kvd::store {

std::size_t WaitingHashes::find(std::uint32_t tag) const noexcept {
  std::size_t at = tag & mask();
  while (slots_[at].count > 0 && slots_[at].tag != tag) at = (at + 1) & mask();
  return at;
}

void WaitingHashes::add(std::uint64_t hash) {
  const std::uint32_t tag = tag_of(hash);
  if (!holds(tag)) {
    if (slots_.empty() || used_ >= kMax) {
      ++beyond_;
      return;
    }
    ++used_;
  }
  Slot& slot = slots_[find(tag)];
  slot.tag = tag;
  ++slot.count;
}

void WaitingHashes::remove(std::uint64_t hash) {
  const std::uint32_t tag = tag_of(hash);
  if (!holds(tag)) {
    KVD_CHECK(beyond_ > 0);
    --beyond_;
    return;
  }
  const std::size_t at = find(tag);
  if (--slots_[at].count == 0) erase(at);
}

// What follows moves up, as far as it may lie there.
void WaitingHashes::erase(std::size_t at) noexcept {
  --used_;
  for (std::size_t next = (at + 1) & mask(); slots_[next].count > 0; next = (next + 1) & mask()) {
    const std::size_t from_home = (next - slots_[next].tag) & mask();
    if (from_home < ((next - at) & mask())) continue;
    slots_[at] = slots_[next];
    at = next;
  }
  slots_[at].count = 0;
}

}  // namespace kvd::store
