// Quotas of tenants: what a store does about what they take up.
#include <algorithm>
#include <utility>

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

std::uint64_t StoreImpl::flash_quota_bytes(NamespaceHandle ns) const noexcept {
  return namespaces_->known(ns) ? namespaces_->tenant(ns).quota.flash_bytes : SpaceQuota::kUnlimited;
}

std::uint64_t StoreImpl::recount_pool(NamespaceHandle ns) const { return pool_->recount(namespaces_->tenant(ns)); }

std::uint64_t StoreImpl::flash_bytes_of(NamespaceHandle ns, const block::RecordId& id) const {
  const auto found = find_on_flash(namespaces_->key_of(ns, id));
  return found ? found->pages * kPageBytes : 0;
}

void StoreImpl::set_quotas(std::span<const TenantQuota> quotas) {
  for (TenantSpace* const tenant : beyond_quota_) tenant->trimming = false;
  beyond_quota_.clear();
  for (TenantSpace* const tenant : namespaces_->tenants().set_quotas(quotas)) begin_trim(*tenant);
}

void StoreImpl::begin_trim(TenantSpace& tenant) {
  if (std::exchange(tenant.trimming, true)) return;
  beyond_quota_.push_back(&tenant);
  trim_.arm(loop_.now());
}

// At the end of recovery, in slices. While it finds the newest first, nobody's oldest records are known.
void StoreImpl::fit_flash_quotas() {
  if (tier_ == nullptr || recovering_) return;
  namespaces_->tenants().visit([this](TenantSpace& tenant) {
    if (tenant.quota.flash_bytes != SpaceQuota::kUnlimited) begin_trim(tenant);
  });
}

// A slice of what this tenant has beyond its quotas. What waits to be written is written; that and what is pinned come
// back here once they may be evicted (Pool::on_beyond). Whether more can be done now.
bool StoreImpl::trim_some(TenantSpace& tenant) {
  const bool more_in_pool = pool_->trim(tenant);
  if (tier_ == nullptr) return more_in_pool;
  if (!tenant.pool_takes(0) || tenant.dirty_bytes > tenant.quota.pool_bytes / 2) tier_->demoter.press(tenant);
  // While recovery finds the newest first its oldest are not known: see fit_flash_quotas().
  const bool more_on_flash = !recovering_ && !tier_->flash.usage.make_room(tenant, 0, FlashUsage::kGivenUpAtOnce);
  return more_in_pool || more_on_flash;
}

// Of one tenant that has something to do, in one turn of the loop.
void StoreImpl::trim() {
  for (bool idle = true; idle && !beyond_quota_.empty();) {
    TenantSpace& tenant = *beyond_quota_.back();
    idle = tenant.pool_takes(0) && tenant.flash_bytes.value() <= tenant.quota.flash_bytes;
    if (trim_some(tenant)) break;
    tenant.trimming = false;
    beyond_quota_.pop_back();
  }
  if (!beyond_quota_.empty()) trim_.arm(loop_.now());
}

Error StoreImpl::crowded(const RecordKey& key, std::uint64_t bytes) {
  TenantSpace& tenant = namespaces_->tenant(key.ns);
  const bool in_quota = tenant.pool_takes(bytes);
  if (tier_ != nullptr) in_quota ? tier_->demoter.pressure() : tier_->demoter.press(tenant);
  return {Code::kBusy, 0, in_quota ? "no room in the pool" : "the tenant's quota of the pool is full"};
}

}  // namespace kvd::store
