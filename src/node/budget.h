// Budget: a number of bytes that may be held at a time, and shares of it as tokens that give themselves back. Somebody
// who holds nothing else gets a share of any size, so that one request larger than the budget still makes progress.
// Belongs to one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/metric.h"

namespace kvd::node {

class Budget {
 public:
  // `used`, when given, shows what is taken.
  explicit Budget(std::uint64_t bytes_max, Gauge* used = nullptr) : bytes_max_(bytes_max), used_(used) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      if (this != &other) {
        release();
        budget_ = std::exchange(other.budget_, nullptr);
        bytes_ = std::exchange(other.bytes_, 0);
      }
      return *this;
    }
    ~Share() { release(); }
    explicit operator bool() const noexcept { return budget_ != nullptr; }
    void release() {
      if (budget_ == nullptr) return;
      std::exchange(budget_, nullptr)->give(std::exchange(bytes_, 0));
    }

   private:
    friend class Budget;
    Share(Budget& budget, std::uint64_t bytes) : budget_(&budget), bytes_(bytes) {}
    Budget* budget_ = nullptr;
    std::uint64_t bytes_ = 0;
  };

  // Whether take(bytes) would succeed; when not, on_room comes once after some is given back.
  [[nodiscard]] bool has_room(std::uint64_t bytes) {
    if (used_bytes_ == 0 || (bytes <= bytes_max_ && used_bytes_ <= bytes_max_ - bytes)) return true;
    wanted_ = true;
    return false;
  }
  // A share of `bytes`, or an empty one when that is not to be had now: see has_room().
  Share take(std::uint64_t bytes) {
    if (!has_room(bytes)) return {};
    used_bytes_ += bytes;
    show();
    return Share(*this, bytes);
  }
  // Whether somebody who holds `own` of it may take `bytes` more and leave others theirs. Who holds something has at
  // most four times of what is left beside `kept`, so that of n who want everything none gets more than 4 / (4 n + 1),
  // and there is always something left; who holds nothing takes what there is, but large shares leave an eighth to
  // small ones (a 64th at most). `reserved` is nobody's who asks: as if there were so much less. Refusing is remembered
  // as in has_room().
  [[nodiscard]] bool is_fair(std::uint64_t own, std::uint64_t bytes, std::uint64_t kept = 0,
                             std::uint64_t reserved = 0) {
    if (used_bytes_ == 0) return true;
    const std::uint64_t there = bytes_max_ - std::min(reserved, bytes_max_);
    if (used_bytes_ <= there && bytes <= there - used_bytes_) {
      const std::uint64_t left = there - used_bytes_ - bytes;
      const bool fair = own > 0 ? left >= kept && own + bytes <= 4 * (left - kept)
                                : bytes <= bytes_max_ / 64 || left >= bytes_max_ / 8;
      if (fair) return true;
    }
    wanted_ = true;
    return false;
  }
  // Whether `kept` are left behind `bytes` more, or nothing is taken.
  [[nodiscard]] bool leaves(std::uint64_t kept, std::uint64_t bytes) const noexcept {
    const std::uint64_t max = bytes_max_ - std::min(kept, bytes_max_);
    return used_bytes_ == 0 || (bytes <= max && used_bytes_ <= max - bytes);
  }
  // As if has_room() had said no.
  void remember_refusal() noexcept { wanted_ = true; }
  // Shares that are held stay, also when they are more than that.
  void set_max(std::uint64_t bytes) noexcept { bytes_max_ = bytes; }
  [[nodiscard]] std::uint64_t bytes_max() const noexcept { return bytes_max_; }
  [[nodiscard]] std::uint64_t used() const noexcept { return used_bytes_; }

  // Called from inside a release when somebody was refused before: only to note it, not to take.
  std::function<void()> on_room;

 private:
  void give(std::uint64_t bytes) {
    KVD_CHECK(bytes <= used_bytes_);
    used_bytes_ -= bytes;
    show();
    if (std::exchange(wanted_, false) && on_room) on_room();
  }

  void show() {
    if (used_ != nullptr) used_->set(used_bytes_);
  }

  std::uint64_t bytes_max_;
  std::uint64_t used_bytes_ = 0;
  bool wanted_ = false;
  Gauge* used_;
};

}  // namespace kvd::node
