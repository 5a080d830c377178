// WriteBudget: bytes that may be written as a mean over time, as the endurance of a drive is given: a token bucket.
// What is not used is saved up to a bound. Pure: the store and the simulator run the same code. One owner, no locking.
#pragma once

#include <algorithm>

namespace kvd::policy {

class WriteBudget {
 public:
  // `bytes_per_s` 0 = unbounded. At most what comes in `most_s` seconds is saved; it begins with that of `begin_s`.
  WriteBudget(double bytes_per_s, double most_s, double begin_s) noexcept
      : bytes_per_s_(bytes_per_s), most_(bytes_per_s * most_s), left_(bytes_per_s * std::min(begin_s, most_s)) {}

  [[nodiscard]] bool bounded() const noexcept { return bytes_per_s_ > 0; }
  // `seconds` have passed.
  void pass(double seconds) noexcept { left_ = std::min(left_ + bytes_per_s_ * seconds, most_); }
  // What may be written now. Below 0 after a write that was larger than what there was: later ones make up for it.
  [[nodiscard]] double left() const noexcept { return left_; }
  void spend(double bytes) noexcept { left_ -= bytes; }

 private:
  double bytes_per_s_;
  double most_;
  double left_;
};

}  // namespace kvd::policy
