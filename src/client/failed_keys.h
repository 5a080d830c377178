// FailedKeys: which keys of one operation have failed so far. Readers get immutable snapshots that live in the op's
// results until release, so a bitmap that a caller holds never changes under it. A snapshot is made only after a
// change; failures are rare, so most operations use the one bitmap of zeros that they start with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "client/op.h"

namespace kvd::client {

class FailedKeys {
 public:
  explicit FailedKeys(std::size_t keys) : bits_((keys + 7) / 8), keys_(keys) {}

  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
  [[nodiscard]] bool all() const noexcept { return count_ == keys_; }
  [[nodiscard]] bool test(std::size_t key) const noexcept { return (bits_[key / 8] >> (key % 8) & 1U) != 0; }
  void set(std::size_t key) noexcept {
    if (test(key)) return;
    bits_[key / 8] = static_cast<std::uint8_t>(bits_[key / 8] | 1U << (key % 8));
    ++count_;
    changed_ = true;
  }
  // Key `first` and all behind it: what a prefix loses with one block.
  void set_from(std::size_t first) noexcept {
    for (std::size_t key = first; key < keys_; ++key) set(key);
  }

  // The bitmap as it is now, kept by `results`.
  const std::uint8_t* snapshot(OpResults& results) {
    if (changed_) {
      auto copy = std::make_unique<std::uint8_t[]>(bits_.size());
      std::ranges::copy(bits_, copy.get());
      results.bitmaps.push_back(std::move(copy));
      changed_ = false;
    }
    return results.bitmaps.back().get();
  }

 private:
  std::vector<std::uint8_t> bits_;
  std::size_t keys_;
  std::uint32_t count_ = 0;
  bool changed_ = false;
};

}  // namespace kvd::client
