// Messages as tests see them: written as hex digits, and taken apart by production code.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>

#include "wire/message.h"

namespace kvd::wire {

// Of digits in pairs, with spaces between some.
inline Buffer from_hex(std::string_view text) {
  Buffer bytes;
  for (std::size_t i = 0; i + 1 < text.size();) {
    if (text[i] == ' ') {
      ++i;
      continue;
    }
    bytes.push_back(static_cast<std::byte>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
    i += 2;
  }
  return bytes;
}

struct Parsed {
  Header header;
  Bytes meta;     // in buffer
  Buffer buffer;  // keeps its bytes in place when moved
};

// The header of a whole message and its structure, both checked. Fails the test where they are not right.
inline Parsed parse(Buffer bytes) {
  const auto header = decode_header(bytes);
  EXPECT_TRUE(header.has_value());
  if (!header) return {};
  const Bytes meta = Bytes(bytes).subspan(kHeaderBytes);
  EXPECT_TRUE(check_meta(*header, meta).has_value());
  return {*header, meta, std::move(bytes)};
}

}  // namespace kvd::wire
