#include "store/flash_usage.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/bytes.h"

namespace kvd::store {

FlashUsage::FlashUsage(Segments& segments, std::uint32_t segment_pages)
    : segments_(segments),
      stretch_pages_((segment_pages + kStretches - 1) / kStretches),
      shares_(segments.count()),
      spent_(segments.count(), false) {
  for (auto& shares : shares_) shares.reserve(1);
  listed_.reserve(segments.count());
}

FlashUsage::Share* FlashUsage::share_of(const TenantSpace& tenant, std::uint32_t segment) noexcept {
  const auto at = std::ranges::lower_bound(shares_[segment], &tenant, std::less<>(), &Share::tenant);
  return at == shares_[segment].end() || at->tenant != &tenant ? nullptr : &*at;
}

void FlashUsage::add(TenantSpace& tenant, std::uint32_t segment, std::uint32_t page, std::uint32_t pages) {
  if (given_up(tenant, segment, page)) return;
  tenant.end = std::max(tenant.end, LogPosition{segments_.at(segment).order, page + pages});
  Share* share = share_of(tenant, segment);
  if (share == nullptr) {
    auto& shares = shares_[segment];
    const auto at = std::ranges::lower_bound(shares, &tenant, std::less<>(), &Share::tenant);
    share = &*shares.insert(at, Share{.tenant = &tenant});
  }
  share->pages[stretch_of(page)] += pages;
  share->all += pages;
  spent_[segment] = false;
  tenant.flash_bytes.add(std::uint64_t{pages} * kPageBytes);
}

// No more than there is: see the index's collisions.
void FlashUsage::take(Share& share, std::uint32_t stretch, std::uint32_t pages) {
  pages = std::min(pages, share.pages[stretch]);
  share.pages[stretch] -= pages;
  share.all -= pages;
  share.tenant->flash_bytes.sub(std::uint64_t{pages} * kPageBytes);
}

void FlashUsage::remove(TenantSpace& tenant, std::uint32_t segment, std::uint32_t page, std::uint32_t pages) {
  if (given_up(tenant, segment, page)) return;
  if (Share* share = share_of(tenant, segment)) take(*share, stretch_of(page), pages);
}

void FlashUsage::forget(std::uint32_t segment) {
  for (Share& share : shares_[segment]) share.tenant->flash_bytes.sub(std::uint64_t{share.all} * kPageBytes);
  shares_[segment].clear();
  spent_[segment] = false;
}

bool FlashUsage::empty(std::uint32_t segment) const noexcept {
  return std::ranges::all_of(shares_[segment], [](const Share& share) { return share.all == 0; });
}

// The segments with something of the tenant, in the order in which they were opened.
void FlashUsage::list_segments(const TenantSpace& tenant) {
  listed_.clear();
  for (std::uint32_t segment = 0; segment < segments_.count(); ++segment) {
    const Share* share = share_of(tenant, segment);
    if (share != nullptr && share->all > 0) listed_.emplace_back(segments_.at(segment).order, segment);
  }
  std::ranges::sort(listed_);
}

// In the stretch that is being written the tenant's next records are beyond what it gives up.
void FlashUsage::give_up(TenantSpace& tenant, std::uint32_t segment, std::uint32_t stretch) {
  Share& share = *share_of(tenant, segment);
  tenant.flash_given_up.add(std::uint64_t{share.pages[stretch]} * kPageBytes);
  take(share, stretch, std::numeric_limits<std::uint32_t>::max());
  const LogPosition behind{segments_.at(segment).order, (stretch + 1) * stretch_pages_};
  tenant.floor = std::max(tenant.floor, std::min(behind, tenant.end));
  spent_[segment] = empty(segment);
  if (spent_[segment]) segments_.demote(segment);
}

void FlashUsage::make_room(TenantSpace& tenant, std::uint64_t bytes) {
  const std::uint64_t quota = tenant.quota.flash_bytes;
  const auto fits = [&](std::uint64_t most) { return bytes <= most && tenant.flash_bytes.value() <= most - bytes; };
  if (fits(quota)) return;
  const std::uint64_t most = quota - quota / kGivenUpPart;
  list_segments(tenant);
  for (const auto& [order, segment] : listed_) {
    for (std::uint32_t stretch = 0; stretch < kStretches && !fits(most); ++stretch)
      if (share_of(tenant, segment)->pages[stretch] > 0) give_up(tenant, segment, stretch);
    if (fits(most)) return;
  }
}

}  // namespace kvd::store
