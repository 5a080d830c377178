// WaitingHashes: whether a removal of a record with a certain hash still waits to be written: a set with counts, asked
// with every acknowledgement of a record that flash has, in constant time whatever waits.
//
// Open addressing over the upper half of the hashes, which is taken for all of it: another record that has the same
// (one question in 65,536 of a full set) is said to wait, too, which costs a wait that need not be. 1 MiB, taken by
// reserve(); it holds kMax, and as long as there are more, or nothing was reserved, all are said to wait. One owner, no
// locking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvd::store {

class WaitingHashes {
 public:
  static constexpr std::size_t kMax = 65'536;  // Tombstones::kWaitingMax

  void reserve() { slots_.resize(2 * kMax); }

  void add(std::uint64_t hash);
  // One that was added.
  void remove(std::uint64_t hash);
  [[nodiscard]] bool contains(std::uint64_t hash) const noexcept { return beyond_ > 0 || holds(tag_of(hash)); }

 private:
  struct Slot {
    std::uint32_t tag = 0;
    std::uint32_t count = 0;  // 0: empty
  };

  [[nodiscard]] static std::uint32_t tag_of(std::uint64_t hash) noexcept {
    return static_cast<std::uint32_t>(hash >> 32);
  }
  [[nodiscard]] std::size_t mask() const noexcept { return slots_.size() - 1; }
  // Where it is, or would be.
  [[nodiscard]] std::size_t find(std::uint32_t tag) const noexcept;
  [[nodiscard]] bool holds(std::uint32_t tag) const noexcept { return used_ > 0 && slots_[find(tag)].count > 0; }
  void erase(std::size_t at) noexcept;

  std::vector<Slot> slots_;   // a power of two, at most half of them in use
  std::size_t used_ = 0;      // slots
  std::uint64_t beyond_ = 0;  // that are in none
};

}  // namespace kvd::store
