#include "sched/block_pool.h"

#include "base/check.h"

namespace kvd::sched {

BlockPool::BlockPool(std::uint32_t blocks) : owner_(blocks, kNobody) {
  free_.reserve(blocks);
  for (BlockId block = blocks; block-- > 0;) free_.push_back(block);
}

BlockId BlockPool::take(RequestId owner) noexcept {
  KVD_CHECK(!free_.empty() && owner != kNobody);
  const BlockId block = free_.back();
  free_.pop_back();
  KVD_CHECK(owner_[block] == kNobody);
  owner_[block] = owner;
  return block;
}

void BlockPool::give(BlockId block, RequestId owner) noexcept {
  KVD_CHECK(block < owner_.size() && owner_[block] == owner);
  owner_[block] = kNobody;
  free_.push_back(block);
}

}  // namespace kvd::sched
