#include "store/tenant_space.h"

#include "base/check.h"

namespace kvd::store {

TenantSpace& TenantSpaces::at(const std::string& tenant) {
  std::unique_ptr<TenantSpace>& space = spaces_[tenant];
  if (space == nullptr) space = std::make_unique<TenantSpace>(tenant);
  return *space;
}

// Nobody needs it any more.
bool TenantSpaces::idle(const TenantSpace& space) noexcept {
  return space.namespaces == 0 && space.quota == SpaceQuota{};
}

TenantSpace& TenantSpaces::enter(const std::string& tenant) {
  const std::scoped_lock lock(mutex_);
  TenantSpace& space = at(tenant);
  ++space.namespaces;
  return space;
}

// Whatever takes up space holds its namespace, so with the last of these nothing is left.
void TenantSpaces::leave(TenantSpace& space) {
  KVD_CHECK(space.namespaces > 0);
  if (--space.namespaces > 0) return;
  KVD_CHECK(space.pool_bytes.value() == 0 && space.dirty_bytes == 0 && space.flash_bytes.value() == 0);
  if (!idle(space)) return;
  const std::scoped_lock lock(mutex_);
  spaces_.erase(spaces_.find(space.name));
}

void TenantSpaces::set_quotas(std::span<const TenantQuota> quotas) {
  const std::scoped_lock lock(mutex_);
  for (const auto& [name, space] : spaces_) space->quota = {};
  for (const TenantQuota& wanted : quotas)
    if (wanted.quota != SpaceQuota{}) at(wanted.tenant).quota = wanted.quota;
  std::erase_if(spaces_, [](const auto& entry) { return idle(*entry.second); });
}

void TenantSpaces::visit(const std::function<void(TenantSpace&)>& visit) {
  for (const auto& [name, space] : spaces_) visit(*space);
}

std::vector<TenantFigures> TenantSpaces::figures(std::size_t max) const {
  const std::scoped_lock lock(mutex_);
  std::vector<TenantFigures> figures;
  for (const auto& [name, space] : spaces_) {
    const bool named = figures.size() < max;
    if (named || figures.size() == max) figures.emplace_back().tenant = named ? name : "(others)";
    TenantFigures& figure = figures.back();
    if (named) figure.quota = space->quota;
    figure.pool_bytes += space->pool_bytes.value();
    figure.pool_refused += space->pool_refused.value();
    figure.pool_evictions += space->pool_evictions.value();
    figure.flash_bytes += space->flash_bytes.value();
    figure.flash_given_up += space->flash_given_up.value();
  }
  return figures;
}

}  // namespace kvd::store
