#include "node/tenant_parts.h"

#include <algorithm>
#include <utility>

namespace kvd::node {

TenantParts::Share::Share(TenantParts& parts, SharedOwn own, std::uint64_t amount)
    : parts_(&parts), own_(std::move(own)), amount_(amount) {}

TenantParts::Share::Share(Share&& other) noexcept
    : parts_(other.parts_), own_(std::move(other.own_)), amount_(std::exchange(other.amount_, 0)) {}

TenantParts::Share& TenantParts::Share::operator=(Share&& other) noexcept {
  if (this == &other) return *this;
  release();
  parts_ = other.parts_;
  own_ = std::move(other.own_);
  amount_ = std::exchange(other.amount_, 0);
  return *this;
}

void TenantParts::Share::release() noexcept {
  if (own_ == nullptr) return;
  parts_->use(*own_, own_->used_ - amount_);
  own_.reset();
  amount_ = 0;
}

bool TenantParts::Share::grow(std::uint64_t amount) noexcept {
  if (own_ == nullptr) return true;
  if (!parts_->may_take(*own_, amount)) return false;
  parts_->use(*own_, own_->used_ + amount);
  amount_ += amount;
  return true;
}

void TenantParts::Account::take(std::uint64_t amount) noexcept {
  if (own_ != nullptr) parts_->use(*own_, own_->used_ + amount);
}

void TenantParts::Account::give_back(std::uint64_t amount) noexcept {
  if (own_ != nullptr) parts_->use(*own_, own_->used_ - amount);
}

void TenantParts::set_count(std::size_t listed) noexcept {
  part_ = total_ / 4 / std::max<std::size_t>(listed, 1);
  kept_ = 0;
}

void TenantParts::set_listed(Own& own, bool listed) noexcept {
  own.listed_ = listed;
  kept_ += kept_for(own);
}

std::uint64_t TenantParts::kept_for(const Own& own) const noexcept {
  return own.listed_ ? part_ - std::min(part_, own.used_) : 0;
}

std::uint64_t TenantParts::room(const Own& own) const noexcept {
  const std::uint64_t free = total_ - std::min(total_, used_);
  const std::uint64_t for_all = free - std::min(free, kept_for_others(own));
  return std::max(for_all, std::min(free, kept_for(own)));
}

TenantParts::Share TenantParts::take(SharedOwn own, std::uint64_t amount) {
  use(*own, own->used_ + amount);
  return {*this, std::move(own), amount};
}

void TenantParts::use(Own& own, std::uint64_t used) noexcept {
  kept_ -= kept_for(own);
  used_ += used - own.used_;  // may be less: modulo 2^64
  own.used_ = used;
  kept_ += kept_for(own);
}

}  // namespace kvd::node
