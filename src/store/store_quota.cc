// Quotas of tenants: what a store does about what they take up.
#include <algorithm>

#include "store/store_impl.h"
#include "store/tenant_space.h"

namespace kvd::store {

std::uint64_t StoreImpl::room_bytes(NamespaceHandle ns) const noexcept {
  const std::uint64_t room = pool_->room_bytes();
  return namespaces_->known(ns) ? std::min(room, namespaces_->tenant(ns).pool_room()) : room;
}

std::vector<TenantFigures> StoreImpl::tenant_figures(std::size_t max) const {
  return namespaces_->tenants().figures(max);
}

std::uint64_t StoreImpl::recount_pool(NamespaceHandle ns) const { return pool_->recount(namespaces_->tenant(ns)); }

std::uint64_t StoreImpl::flash_bytes_of(NamespaceHandle ns, const block::RecordId& id) const {
  const auto found = find_on_flash(namespaces_->key_of(ns, id));
  return found ? found->pages * kPageBytes : 0;
}

void StoreImpl::set_quotas(std::span<const TenantQuota> quotas) {
  namespaces_->tenants().set_quotas(quotas);
  namespaces_->tenants().visit([this](TenantSpace& tenant) { pool_->quota_changed(tenant); });
  fit_flash_quotas();
  trim_.arm(loop_.now());
}

// While recovery finds the newest first, nobody's oldest records are known.
void StoreImpl::fit_flash_quotas() {
  if (tier_ == nullptr || recovering_) return;
  namespaces_->tenants().visit([this](TenantSpace& tenant) { tier_->flash.usage.make_room(tenant, 0); });
}

// What is pinned or waits to be written stays: the next image of its tenant is refused for it.
void StoreImpl::trim() {
  bool more = false;
  namespaces_->tenants().visit([&](TenantSpace& tenant) { more = more || pool_->trim(tenant); });
  if (more) trim_.arm(loop_.now());
}

Error StoreImpl::crowded(const RecordKey& key, std::uint64_t bytes) {
  TenantSpace& tenant = namespaces_->tenant(key.ns);
  const bool in_quota = tenant.pool_takes(bytes);
  if (tier_ != nullptr) in_quota ? tier_->demoter.pressure() : tier_->demoter.press(tenant);
  return {Code::kBusy, 0, in_quota ? "no room in the pool" : "the tenant's quota of the pool is full"};
}

}  // namespace kvd::store
