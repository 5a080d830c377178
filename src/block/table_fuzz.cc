// Fuzzes the decoder of table pages, which come from flash and hold the checksums that slabs are verified against. For
// half of the inputs the head is made plausible and the checksum right, so that what lies behind is reached too.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "block/checksum.h"

namespace {

using namespace kvd;

void check(bool ok) {
  if (!ok) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  if (size < 4) return 0;
  constexpr std::uint64_t kSeed = 77;
  block::RecordShape shape;
  shape.layers = static_cast<std::uint32_t>(1 + (data[1] | static_cast<unsigned>(data[2]) << 8) % kLayersMax);
  shape.table_bytes = kPageBytes;
  std::vector<std::byte> page(kPageBytes);
  const std::size_t n = std::min<std::size_t>(size - 4, page.size());
  std::transform(data + 4, data + 4 + n, page.begin(), [](uint8_t b) { return static_cast<std::byte>(b); });
  if (data[0] % 2 == 0) {
    std::vector<std::uint64_t> slabs(shape.layers);
    for (std::size_t i = 0; i < slabs.size(); ++i) slabs[i] = i < n ? data[4 + i] * std::uint64_t{0x9E3779B9} : i;
    const std::vector<std::byte> foreign(page.begin(), page.begin() + data[3]);
    block::encode_table(page, kSeed, slabs, foreign);
    const auto table = block::decode_table(page, kSeed, shape);
    check(table && std::ranges::equal(table->slabs, slabs) && std::ranges::equal(table->foreign, foreign));
    page[size % kPageBytes] ^= std::byte{data[3]};  // and one byte off
  }
  const auto table = block::decode_table(page, kSeed, shape);
  if (!table) return 0;
  check(table->slabs.size() == shape.layers && table->foreign.size() <= kForeignKeyBytesMax);
  check(table->checksum == block::table_checksum(kSeed, table->slabs, table->foreign));
  return 0;
}
