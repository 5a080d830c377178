// HiddenHashes: which records are not given out while a store recovers, by the hash of their key: a set of fixed size
// that may hold more than was added to it, as a record that is hidden without need is a miss until the end, no more.
// Another one has what was replaced beside content that nobody knows (Flash::unsure): there, a needless wait.
//
// A bit for each value of the hash's lowest bits: 16 for each record that the index has room for, between 1 KiB and
// 1 MiB, taken with the first hash and given back by clear(). With 262,144 hashes one other record in 32 is hidden,
// with 20 million nine in ten: flash may hold more tombstones than a store keeps in memory. One owner, no locking.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace kvd::store {

class HiddenHashes {
 public:
  static constexpr std::uint64_t kBitsMin = std::uint64_t{1} << 13;
  static constexpr std::uint64_t kBitsMax = std::uint64_t{1} << 23;

  explicit HiddenHashes(std::uint64_t records_max)
      : bits_(std::clamp(std::bit_ceil(std::min(records_max, kBitsMax) * 16), kBitsMin, kBitsMax)) {}

  void add(std::uint64_t hash) {
    if (words_.empty()) words_.assign(bits_ / 64, 0);
    words_[hash % bits_ / 64] |= std::uint64_t{1} << hash % 64;
  }
  [[nodiscard]] bool contains(std::uint64_t hash) const noexcept {
    return !words_.empty() && (words_[hash % bits_ / 64] >> hash % 64 & 1) != 0;
  }
  void clear() noexcept { words_ = {}; }
  [[nodiscard]] std::uint64_t memory_bytes() const noexcept { return words_.size() * sizeof(std::uint64_t); }

 private:
  std::uint64_t bits_;  // a power of two, so that the word and the bit in it are of the same bits of the hash
  std::vector<std::uint64_t> words_;
};

}  // namespace kvd::store
