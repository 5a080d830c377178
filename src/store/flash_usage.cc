#include "store/flash_usage.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/bytes.h"
#include "store/device_segments.h"

namespace kvd::store {
namespace {

constexpr std::size_t kStep = 8;  // shares that a segment gets at a time

}  // namespace

FlashUsage::FlashUsage(Segments& segments, std::uint32_t segment_pages, std::size_t shares_max)
    : segments_(segments),
      stretch_pages_((segment_pages + kStretches - 1) / kStretches),
      shares_(segments.count()),
      shares_left_(shares_max),
      coarse_(segments.count(), false),
      coarse_from_(segments.devices(), kNoOrder),
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
  TenantFlash& flash = flash_of(tenant, segment);
  flash.end = std::max(flash.end, LogPosition{segments_.at(segment).order, page + pages});
  Share* share = share_of(tenant, segment);
  spent_[segment] = false;
  tenant.flash_bytes.add(std::uint64_t{pages} * kPageBytes);
  auto& shares = shares_[segment];
  if (share == nullptr && has_place(shares)) {
    const auto at = std::ranges::lower_bound(shares, &tenant, std::less<>(), &Share::tenant);
    share = &*shares.insert(at, Share{.tenant = &tenant});
  }
  if (share == nullptr) {
    coarse_[segment] = true;
    std::uint64_t& from = coarse_from_[segments_.at(segment).device];
    from = std::min(from, segments_.at(segment).order);
    forget_gone(tenant);  // before it could become one part with what is there
    return flash.coarse.add(segments_.at(segment).order, pages);
  }
  share->pages[stretch_of(page)] = static_cast<std::uint16_t>(share->pages[stretch_of(page)] + pages);
  share->all += pages;
}

// For one share more; takes memory for several where it may.
bool FlashUsage::has_place(std::vector<Share>& shares) {
  if (shares.size() < shares.capacity()) return true;
  const std::size_t more = std::min<std::size_t>(shares_left_, kStep);
  if (more == 0) return false;
  shares_left_ -= more;
  shares.reserve(shares.capacity() + more);
  return true;
}

// No more than there is: see the index's collisions. Returns how many that were.
std::uint32_t FlashUsage::take(Share& share, std::uint32_t stretch, std::uint32_t pages) {
  const std::uint16_t taken = static_cast<std::uint16_t>(std::min<std::uint32_t>(pages, share.pages[stretch]));
  share.pages[stretch] = static_cast<std::uint16_t>(share.pages[stretch] - taken);
  share.all -= taken;
  share.tenant->flash_bytes.sub(std::uint64_t{taken} * kPageBytes);
  return taken;
}

// Where a share came late, a part of what the tenant has in the segment is not in it.
void FlashUsage::remove(TenantSpace& tenant, std::uint32_t segment, std::uint32_t page, std::uint32_t pages) {
  if (given_up(tenant, segment, page)) return;
  if (Share* share = share_of(tenant, segment)) pages -= take(*share, stretch_of(page), pages);
  if (pages > 0 && coarse_[segment])
    tenant.flash_bytes.sub(flash_of(tenant, segment).coarse.remove(segments_.at(segment).order, pages) * kPageBytes);
}

void FlashUsage::forget(std::uint32_t segment) {
  auto& shares = shares_[segment];
  for (Share& share : shares) share.tenant->flash_bytes.sub(std::uint64_t{share.all} * kPageBytes);
  shares.clear();
  spent_[segment] = false;
  if (coarse_[segment]) forget_coarse(segment);
  if (shares_left_ >= kStep || shares.capacity() == 1) return;
  shares_left_ += shares.capacity() - 1;  // others need it
  shares.shrink_to_fit();
  shares.reserve(1);
}

bool FlashUsage::empty(std::uint32_t segment) const noexcept {
  return !coarse_[segment] && std::ranges::all_of(shares_[segment], [](const Share& share) { return share.all == 0; });
}

// What was counted without a share in segments that have gone since.
void FlashUsage::forget_gone(TenantSpace& tenant) const {
  for (std::size_t device = 0; device < coarse_from_.size(); ++device)
    tenant.flash_bytes.sub(tenant.on_device[device].coarse.dropped_before(coarse_from_[device]) * kPageBytes);
}

void FlashUsage::forget_coarse(std::uint32_t gone) {
  coarse_[gone] = false;
  const DeviceSegments& own = segments_.device(segments_.at(gone).device);
  std::uint64_t& from = coarse_from_[segments_.at(gone).device];
  from = kNoOrder;
  for (std::uint32_t segment = own.first(); segment < own.end(); ++segment)
    if (coarse_[segment]) from = std::min(from, segments_.at(segment).order);
}

// All of what it has up to there, of which the shares have nothing any more.
void FlashUsage::give_up_coarse(TenantSpace& tenant, TenantFlash& from) {
  const CoarseUsage::Part part = from.coarse.take_oldest();
  tenant.flash_given_up.add(part.pages * kPageBytes);
  tenant.flash_bytes.sub(part.pages * kPageBytes);
  const LogPosition behind{part.last, std::numeric_limits<std::uint32_t>::max()};
  from.floor = std::max(from.floor, std::min(behind, from.end));
}

TenantFlash* FlashUsage::coarse_before(TenantSpace& tenant, std::uint64_t order) noexcept {
  TenantFlash* oldest = nullptr;
  for (TenantFlash& flash : tenant.on_device) {
    if (flash.coarse.empty() || flash.coarse.oldest()->last >= order) continue;
    oldest = &flash;
    order = flash.coarse.oldest()->last;
  }
  return oldest;
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
  TenantFlash& flash = flash_of(tenant, segment);
  flash.floor = std::max(flash.floor, std::min(behind, flash.end));
  spent_[segment] = empty(segment);
  if (spent_[segment]) segments_.demote(segment);
}

bool FlashUsage::make_room(TenantSpace& tenant, std::uint64_t bytes, std::size_t segments_max) {
  const std::uint64_t quota = tenant.quota.flash_bytes;
  const auto fits = [&](std::uint64_t most) { return bytes <= most && tenant.flash_bytes.value() <= most - bytes; };
  if (fits(quota)) return true;
  forget_gone(tenant);
  if (fits(quota)) return true;
  const std::uint64_t most = quota - quota / kGivenUpPart;
  const auto give_up_coarse_before = [&](std::uint64_t before) {
    for (TenantFlash* from = nullptr; !fits(most) && (from = coarse_before(tenant, before)) != nullptr;)
      give_up_coarse(tenant, *from);
  };
  list_segments(tenant);
  for (const auto& [order, segment] : listed_) {
    if (segments_max-- == 0) return false;
    give_up_coarse_before(order);
    for (std::uint32_t stretch = 0; stretch < kStretches && !fits(most); ++stretch)
      if (share_of(tenant, segment)->pages[stretch] > 0) give_up(tenant, segment, stretch);
    if (fits(most)) return true;
  }
  give_up_coarse_before(kNoOrder);
  return true;
}

}  // namespace kvd::store
