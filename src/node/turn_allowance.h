// TurnAllowance: bytes that all sessions together may move at once in a turn of the loop, before who has more stands in
// line (net::SliceLine): many who each ask for little make a turn no longer than that. Owned by the node, which
// outlives its users; belongs to its loop.
#pragma once

#include <algorithm>
#include <cstddef>

#include "io/loop.h"

namespace kvd::node {

class TurnAllowance {
 public:
  TurnAllowance(io::Loop& loop, std::size_t bytes)
      : loop_(loop), bytes_(bytes), left_(bytes), timer_(loop, [this] { left_ = bytes_; }) {}
  TurnAllowance(const TurnAllowance&) = delete;
  TurnAllowance& operator=(const TurnAllowance&) = delete;

  // As much of `wanted` as is left in this turn.
  std::size_t take(std::size_t wanted) {
    const std::size_t taken = std::min(wanted, left_);
    left_ -= taken;
    if (taken > 0 && !timer_.armed()) timer_.arm(loop_.now());  // the next turn
    return taken;
  }
  // Of what was taken in this turn.
  void give_back(std::size_t bytes) noexcept { left_ = std::min(bytes_, left_ + bytes); }

 private:
  io::Loop& loop_;
  const std::size_t bytes_;
  std::size_t left_;
  io::Timer timer_;
};

}  // namespace kvd::node
