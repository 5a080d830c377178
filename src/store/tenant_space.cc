#include "store/tenant_space.h"

#include <iterator>
#include <limits>
#include <string_view>

#include "base/bytes.h"
#include "base/check.h"

namespace kvd::store {

TenantSpace& TenantSpaces::at(const std::string& tenant) {
  std::unique_ptr<TenantSpace>& space = spaces_[tenant];
  if (space == nullptr) space = std::make_unique<TenantSpace>(tenant, devices_);
  return *space;
}

TenantSpace* TenantSpaces::find(const std::string& tenant) const {
  const auto found = spaces_.find(tenant);
  return found == spaces_.end() ? nullptr : found->second.get();
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
  for (TenantFlash& flash : space.on_device)
    space.flash_bytes.sub(flash.coarse.dropped_before(std::numeric_limits<std::uint64_t>::max()) * kPageBytes);
  KVD_CHECK(space.pool_bytes.value() == 0 && space.dirty_bytes == 0 && space.flash_bytes.value() == 0);
  if (!idle(space)) return;
  const std::scoped_lock lock(mutex_);
  spaces_.erase(spaces_.find(space.name));
}

std::vector<TenantSpace*> TenantSpaces::set_quotas(std::span<const TenantQuota> quotas) {
  const std::scoped_lock lock(mutex_);
  std::map<std::string_view, SpaceQuota> wanted;
  for (const TenantQuota& quota : quotas) {
    if (quota.quota == SpaceQuota{}) continue;
    wanted[quota.tenant] = quota.quota;
    at(quota.tenant);
  }
  std::vector<TenantSpace*> bounded;
  for (auto entry = spaces_.begin(); entry != spaces_.end();) {
    TenantSpace& space = *entry->second;
    const auto found = wanted.find(entry->first);
    space.quota = found == wanted.end() ? SpaceQuota{} : found->second;
    if (found != wanted.end()) bounded.push_back(&space);
    entry = idle(space) ? spaces_.erase(entry) : std::next(entry);
  }
  return bounded;
}

void TenantSpaces::visit(const std::function<void(TenantSpace&)>& visit) {
  for (const auto& [name, space] : spaces_) visit(*space);
}

std::vector<TenantFigures> TenantSpaces::figures(std::size_t max) const {
  const std::scoped_lock lock(mutex_);
  std::vector<TenantFigures> figures;
  for (const auto& [name, space] : spaces_) {
    const bool named = figures.size() < max;
    if (named || figures.size() == max) figures.push_back({.tenant = named ? name : "(others)", .summed = !named});
    TenantFigures& figure = figures.back();
    if (named) figure.quota = space->quota;
    figure.pool_bytes += space->pool_bytes.value();
    figure.pool_refused += space->pool_refused.value();
    figure.pool_evictions += space->pool_evictions.value();
    figure.flash_bytes += space->flash_bytes.value();
    figure.flash_given_up += space->flash_given_up.value();
    figure.namespaces += space->opened.value();
    figure.namespaces_refused += space->open_refused.value();
  }
  return figures;
}

}  // namespace kvd::store
