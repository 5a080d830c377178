// The device's KV blocks: which are free, and who owns each of the others. Blocks have numbers 0..blocks-1; a block has
// one owner or none. One owner of the pool, no locking; 8 bytes a block, taken by the constructor.
#pragma once

#include <cstdint>
#include <vector>

namespace kvd::sched {

using BlockId = std::uint32_t;
using RequestId = std::uint32_t;
inline constexpr RequestId kNobody = UINT32_MAX;

class BlockPool {
 public:
  explicit BlockPool(std::uint32_t blocks);

  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(owner_.size()); }
  [[nodiscard]] std::uint32_t free() const noexcept { return static_cast<std::uint32_t>(free_.size()); }
  [[nodiscard]] std::uint32_t used() const noexcept { return size() - free(); }
  [[nodiscard]] RequestId owner(BlockId block) const noexcept { return owner_[block]; }

  // Gives a free block to `owner`. Requires free() > 0 and a real owner.
  BlockId take(RequestId owner) noexcept;
  // Takes `block` back from `owner`. Requires that it owns the block.
  void give(BlockId block, RequestId owner) noexcept;

 private:
  std::vector<BlockId> free_;  // last in, first out
  std::vector<RequestId> owner_;
};

}  // namespace kvd::sched
