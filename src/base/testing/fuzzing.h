// What fuzzers share.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <source_location>
#include <span>
#include <string>
#include <string_view>

namespace kvd {

// Ends the process unless it holds, saying where, which a fuzzer takes for a finding.
inline void require(bool holds, std::source_location at = std::source_location::current()) {
  if (holds) return;
  std::fprintf(stderr, "required at %s:%u; errno %d\n", at.file_name(), static_cast<unsigned>(at.line()), errno);
  std::abort();
}

// An input that is mostly words of a language: a byte from 0x80 on stands for one of them.
inline std::string spell(std::span<const std::uint8_t> input, std::span<const std::string_view> words) {
  std::string text;
  for (const std::uint8_t byte : input) {
    if (byte < 0x80) {
      text.push_back(static_cast<char>(byte));
    } else {
      text += words[(byte - 0x80U) % words.size()];
    }
  }
  return text;
}

}  // namespace kvd
