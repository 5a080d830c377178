// Fuzzes the parser of heads: what it takes lies inside the page, and written anew gives the same bytes as far as they
// are used.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/testing/fuzzing.h"
#include "node/resp_value.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvd;
  std::vector<std::byte> page(kPageBytes);
  std::copy_n(reinterpret_cast<const std::byte*>(data), std::min(size, page.size()), page.begin());
  if (size % 2 == 0) {  // reaches what is behind the magic
    constexpr std::byte kStart[] = {std::byte{'K'}, std::byte{'V'}, std::byte{'R'}, std::byte{'H'}, std::byte{1}, {}};
    std::ranges::copy(kStart, page.begin());
  }
  const auto head = node::decode_resp_head(page);
  if (!head) return 0;
  require(head->key.size() <= node::kRespKeyBytesMax && head->value_bytes <= node::kRespValueBytesMax);
  require(head->whole() == (head->value.size() == head->value_bytes) || head->value_bytes == 0);
  const std::size_t used = node::resp_value_offset(head->key.size()) + head->value.size();
  require(used <= kPageBytes);
  std::vector<std::byte> again(page.begin(), page.end());
  node::encode_resp_head(again, head->key, head->value_bytes, head->body);
  require(std::equal(page.begin(), page.begin() + static_cast<std::ptrdiff_t>(used), again.begin()));
  if (!head->whole()) {
    for (std::uint32_t i = 0; i < node::resp_parts(head->value_bytes); ++i) {
      const std::uint64_t bytes = node::resp_part_bytes(head->value_bytes, i);
      require(bytes > 0 && node::resp_size_bytes(node::resp_size_of(bytes)) >= bytes);
    }
  }
  return 0;
}
