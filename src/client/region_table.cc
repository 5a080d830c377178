#include "client/region_table.h"

namespace kvd::client {

Result<RegionId> RegionTable::add(void* base, std::size_t bytes, RegionKind kind) {
  if (base == nullptr || bytes == 0) return fail(Code::kInvalid, "a region is empty");
  if (kind != RegionKind::kHost) return fail(Code::kInvalid, "only host memory can be registered in this build");
  auto region = std::make_unique<Region>();
  region->bytes = MutableBytes(static_cast<std::byte*>(base), bytes);
  const std::lock_guard lock(mutex_);
  if (regions_.size() >= kRegionsMax) return fail(Code::kNoSpace, "too many regions are registered");
  const RegionId id{next_++};
  regions_.emplace(id.value, std::move(region));
  return id;
}

Status RegionTable::remove(RegionId region) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(region.value);
  if (found == regions_.end()) return fail(Code::kNotFound, "no such region");
  if (found->second->uses.load(std::memory_order_acquire) > 0) {
    return fail(Code::kBusy, "operations still use the region");
  }
  regions_.erase(found);
  return {};
}

Result<RegionUse> RegionTable::use(RegionId region) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(region.value);
  if (found == regions_.end()) return fail(Code::kInvalid, "no such region");
  found->second->uses.fetch_add(1, std::memory_order_relaxed);
  return RegionUse(found->second->uses, found->second->bytes);
}

}  // namespace kvd::client
