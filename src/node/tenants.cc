#include "node/tenants.h"

namespace kvd::node {

SharedTenant Tenants::get(const std::string& name, const auth::Quotas& quotas) {
  const std::scoped_lock lock(mutex_);
  SharedTenant& tenant = tenants_[name];
  if (tenant == nullptr) tenant = std::make_shared<TenantUse>(name);
  tenant->requests.set_max(quotas.requests);
  return tenant;
}

std::vector<Tenants::Figure> Tenants::figures() const {
  const std::scoped_lock lock(mutex_);
  std::vector<Figure> figures;
  for (const auto& [name, tenant] : tenants_) {
    if (figures.size() == kShownMax) figures.push_back({"(others)"});
    const bool shown = figures.size() < kShownMax;
    Figure& figure = shown ? figures.emplace_back(Figure{name}) : figures.back();
    figure.accepted += tenant->accepted.value();
    figure.refused += tenant->refused.value();
  }
  return figures;
}

}  // namespace kvd::node
