#include "node/resp_value.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "node/testing/resp_client.h"

namespace kvd::node {
namespace {

TEST(RespValue, TheSmallestSizeThatHoldsAPartWastesLittle) {
  std::uint32_t before = 0;
  for (std::uint32_t size = 0; size < kRespSizes; ++size) {
    const std::uint32_t bytes = resp_size_bytes(size);
    EXPECT_GT(bytes, before);
    EXPECT_EQ(bytes % kPageBytes, 0u);
    EXPECT_EQ(resp_size_of(bytes), size);
    EXPECT_EQ(resp_size_of(before + 1), size);
    if (bytes > 8 * kPageBytes) {
      EXPECT_LE((bytes - before - 1) * 8u, bytes);
    }
    before = bytes;
  }
  EXPECT_EQ(before, kRespPartBytesMax);
}

TEST(RespValue, PartsAreAllOfTheValue) {
  for (const std::uint64_t bytes :
       {std::uint64_t{1}, kRespPartBytesMax - 1, kRespPartBytesMax, kRespPartBytesMax + 1, kRespValueBytesMax}) {
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < resp_parts(bytes); ++i) sum += resp_part_bytes(bytes, i);
    EXPECT_EQ(sum, bytes);
  }
  EXPECT_EQ(resp_parts(kRespValueBytesMax), kRespPartsMax);
}

TEST(RespValue, AHeadSaysWhatWasWritten) {
  std::vector<std::byte> page(kPageBytes, std::byte{0xFF});
  const std::string key = "a key", value = resp_text(500, 1);
  std::ranges::copy(as_bytes(value), page.begin() + static_cast<std::ptrdiff_t>(resp_value_offset(key.size())));
  encode_resp_head(page, as_bytes(key), value.size(), {});
  auto head = decode_resp_head(page);
  ASSERT_TRUE(head.has_value());
  EXPECT_TRUE(head->whole());
  EXPECT_EQ(as_text(head->key), key);
  EXPECT_EQ(as_text(head->value), value);
  EXPECT_TRUE(std::ranges::all_of(Bytes(page).subspan(1000), [](std::byte b) { return b == std::byte{}; }));
  encode_resp_head(page, as_bytes(key), 1 << 20, {3, 7});
  head = decode_resp_head(page);
  ASSERT_TRUE(head.has_value());
  EXPECT_FALSE(head->whole());
  EXPECT_EQ(head->value_bytes, 1u << 20);
  EXPECT_EQ(head->body, (Key{3, 7}));
}

TEST(RespValue, WhatIsNoHeadIsRefused) {
  std::vector<std::byte> page(kPageBytes);
  EXPECT_FALSE(decode_resp_head(page));
  EXPECT_FALSE(decode_resp_head(Bytes(page).first(100)));
  encode_resp_head(page, as_bytes("k"), 10, {});
  ASSERT_TRUE(decode_resp_head(page));
  const auto broken = [&](std::size_t at, std::uint64_t value, std::size_t bytes) {
    std::vector<std::byte> other = page;
    for (std::size_t i = 0; i < bytes; ++i) other[at + i] = static_cast<std::byte>(value >> (8 * i));
    return !decode_resp_head(other).has_value();
  };
  EXPECT_TRUE(broken(4, 2, 2)) << "version";
  EXPECT_TRUE(broken(6, 1025, 2)) << "length of the key";
  EXPECT_TRUE(broken(8, kRespValueBytesMax + 1, 8)) << "length of the value";
  EXPECT_TRUE(broken(8, 4096, 8)) << "a value that does not fit";
  EXPECT_TRUE(broken(16, 1, 8)) << "parts of a value that would fit";
}

}  // namespace
}  // namespace kvd::node
