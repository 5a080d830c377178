#include "node/connection_budget.h"

#include <utility>

namespace kvd::node {

void ConnectionBudget::set_tenant(TenantParts& parts, TenantParts::SharedOwn own) noexcept {
  parts_ = &parts;
  own_ = std::move(own);
}

std::uint64_t ConnectionBudget::reserved() const noexcept {
  return own_ == nullptr ? 0 : parts_->kept_for_others(*own_);
}

bool ConnectionBudget::is_fair(std::uint64_t bytes) {
  if (is_within_part(bytes)) return node_.has_room(bytes);
  return node_.is_fair(used(), bytes, 0, reserved());
}

ConnectionBudget::Taken ConnectionBudget::take_of_all(std::uint64_t bytes) {
  Taken taken;
  taken.connection = take(bytes);
  if (!taken.connection) return {};
  taken.node = node_.take(bytes);
  if (!taken.node) return {};
  if (own_ != nullptr) taken.tenant = parts_->take(own_, bytes);
  return taken;
}

}  // namespace kvd::node
