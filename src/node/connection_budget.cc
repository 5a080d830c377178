#include "node/connection_budget.h"

#include <utility>

namespace kvd::node {

void ConnectionBudget::set_tenant(TenantParts& parts, TenantParts::SharedOwn own) noexcept {
  parts_ = &parts;
  own_ = std::move(own);
}

bool ConnectionBudget::leaves_others_theirs(std::uint64_t bytes) {
  if (own_ == nullptr || node_.used() == 0 || parts_->may_take(*own_, bytes)) return true;
  node_.remember_refusal();
  return false;
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
