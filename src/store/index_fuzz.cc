// Fuzzes the flash index: the input is a list of operations, checked against a map. Five bytes an operation.
#include <cstdint>
#include <cstdlib>
#include <map>

#include "store/index.h"

namespace {

using namespace kvd::store;

void check(bool ok) {
  if (!ok) std::abort();
}

// Spreads 16 bits over the hash, so that buckets, tags and collisions of buckets are all reached.
std::uint64_t hash_of(std::uint64_t n) { return (n + 1) * 0x9E37'79B9'7F4A'7C15; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  FlashIndex index(64);
  std::map<std::uint64_t, IndexEntry> model;
  for (; size >= 5; data += 5, size -= 5) {
    const std::uint64_t hash = hash_of(data[1] % 97U);
    const IndexEntry entry{.segment = data[2] % 7U,
                           .offset = 1U + data[3],
                           .pages = 1U + data[4] * 64U,
                           .interleave = data[4] % 4U,
                           .checksum = data[3] * 0x0101'0101U};
    const auto known = model.find(hash);
    if (data[0] % 4 < 2) {
      if (index.insert(hash, entry)) {
        model[hash] = entry;
      } else {
        check(known == model.end());
      }
    } else if (data[0] % 4 == 2) {
      const bool there =
          known != model.end() && known->second.segment == entry.segment && known->second.offset == entry.offset;
      check((index.erase(hash, entry.segment, entry.offset) > 0) == there);
      if (there) model.erase(known);
    } else {
      const auto erased = std::erase_if(model, [&](const auto& item) { return item.second.segment == entry.segment; });
      check(index.erase_segment(entry.segment, 0, index.buckets()) == erased);
    }
    check(index.size() == model.size());
  }
  for (std::uint64_t n = 0; n < 97; ++n) {
    const auto found = index.find(hash_of(n));
    const auto known = model.find(hash_of(n));
    check(found.has_value() == (known != model.end()));
    if (found) check(*found == known->second);
  }
  return 0;
}
