// Placement: which device of a store gets the next frame: the one that has been given the least for its size. So a run
// of records lies on all of them, devices of any sizes turn over their segments at one pace, and one that takes nothing
// for a while gets less. Pure; one owner, no locking.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace kvd::policy {

class Placement {
 public:
  // A device may be behind the others by this part of its size: what it has missed beyond that, while it was away or
  // had no budget, it does not get afterwards.
  static constexpr double kBehindMax = 1.0 / 32;

  // `bytes`: of each device; at most 32 of them.
  explicit Placement(std::vector<std::uint64_t> bytes) : bytes_(std::move(bytes)), given_(bytes_.size(), 0.0) {}

  // `device` was given a frame.
  void wrote(std::size_t device, std::uint64_t bytes) noexcept {
    given_[device] += static_cast<double>(bytes) / static_cast<double>(bytes_[device]);
    const double least = given_[device] - kBehindMax;
    for (double& other : given_) other = std::max(other, least);
  }

  // Of those that can take it, a bit for each; nothing when none can. Of equal ones the first.
  [[nodiscard]] std::optional<std::size_t> next(std::uint32_t can) const noexcept {
    std::optional<std::size_t> least;
    for (std::size_t i = 0; i < given_.size(); ++i)
      if ((can >> i & 1) != 0 && (!least || given_[i] < given_[*least])) least = i;
    return least;
  }

 private:
  std::vector<std::uint64_t> bytes_;
  std::vector<double> given_;  // in devices' sizes
};

}  // namespace kvd::policy
