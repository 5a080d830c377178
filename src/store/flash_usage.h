// FlashUsage: how many bytes of flash the records of each tenant take up that may be found, and where in the log they
// lie, so that a tenant at its quota can give up its oldest.
//
// Giving up moves the tenant's floor forward along a device's log, in the order in which segments were opened: what it
// wrote before is found no more. Each device has a floor of its own: two segments that are open at once would otherwise
// have what is written to the older one given up as soon as the floor lies in the younger. Nothing is read or written
// for it and nobody else's records are touched. Entries stay in the index until their segment is given up, as removals
// have to name what lies there. The floor is not on flash: the next start finds all there is and gives up anew. A
// segment is counted in kStretches parts; what a tenant has in one goes together. The index knows 44 bits of a hash:
// where it takes a record for another tenant's, that one's count is wrong until the segment goes.
//
// Memory: a share of 48 bytes for each tenant in each segment, of kSharesPerSegment on average; one in each segment is
// taken at start, others as they come, up to that bound (4 TB: 14,901 segments, 46 MB). Where it is reached a tenant's
// records in a segment are counted with others of it (CoarseUsage): such a tenant gives up about a sixteenth of those
// at a time, and what goes with its segment may count on until the segments of the same part of the log have gone, too.
// So its quota is never exceeded for that. One owner, no locking, no I/O.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "store/segments.h"
#include "store/tenant_space.h"

namespace kvd::store {

class FlashUsage {
 public:
  static constexpr std::uint32_t kStretches = 16;
  // Of its quota a tenant gives up this part at least, so that looking for its oldest records is rare.
  static constexpr std::uint64_t kGivenUpPart = 64;

  // Segments in which a tenant gives up something at once in a slice.
  static constexpr std::size_t kGivenUpAtOnce = 256;
  static constexpr std::size_t kSharesPerSegment = 64;

  // `shares_max` beside one in each segment.
  FlashUsage(Segments& segments, std::uint32_t segment_pages, std::size_t shares_max);
  FlashUsage(Segments& segments, std::uint32_t segment_pages)
      : FlashUsage(segments, segment_pages, std::size_t{segments.count()} * kSharesPerSegment) {}

  // A record of `pages` pages at `page` of `segment` may be found from now on; not counted where it was given up.
  void add(TenantSpace& tenant, std::uint32_t segment, std::uint32_t page, std::uint32_t pages);
  // ... and is not any more.
  void remove(TenantSpace& tenant, std::uint32_t segment, std::uint32_t page, std::uint32_t pages);
  // Nothing of the segment may be found any more.
  void forget(std::uint32_t segment);
  // Gives up the tenant's oldest records until its quota has room for `bytes` more, or nothing is left; false: it has
  // stopped before, behind `segments_max` segments.
  bool make_room(TenantSpace& tenant, std::uint64_t bytes, std::size_t segments_max = SIZE_MAX);
  // Whether the tenant has given up what it has there.
  [[nodiscard]] bool given_up(const TenantSpace& tenant, std::uint32_t segment, std::uint32_t page) const noexcept {
    const LogPosition& floor = tenant.on_device[segments_.at(segment).device].floor;
    return floor != LogPosition{} && LogPosition{segments_.at(segment).order, page} < floor;
  }
  // Whether tenants have given up all of what the segment still had: it is the next to go.
  [[nodiscard]] bool spent(std::uint32_t segment) const noexcept { return spent_[segment]; }

 private:
  static constexpr std::uint64_t kNoOrder = std::numeric_limits<std::uint64_t>::max();
  struct Share {
    TenantSpace* tenant = nullptr;
    std::array<std::uint16_t, kStretches> pages{};  // by the first page of a record; a segment has fewer than 2^16
    std::uint32_t all = 0;
  };
  [[nodiscard]] Share* share_of(const TenantSpace& tenant, std::uint32_t segment) noexcept;
  [[nodiscard]] std::uint32_t stretch_of(std::uint32_t page) const noexcept { return page / stretch_pages_; }
  [[nodiscard]] bool has_place(std::vector<Share>& shares);
  static std::uint32_t take(Share& share, std::uint32_t stretch, std::uint32_t pages);
  void forget_gone(TenantSpace& tenant) const;
  void forget_coarse(std::uint32_t gone);
  static void give_up_coarse(TenantSpace& tenant, TenantFlash& from);
  [[nodiscard]] TenantFlash& flash_of(TenantSpace& tenant, std::uint32_t segment) const noexcept {
    return tenant.on_device[segments_.at(segment).device];
  }
  // Where the tenant's oldest part without a share is, if it ends before this order.
  static TenantFlash* coarse_before(TenantSpace& tenant, std::uint64_t order) noexcept;
  [[nodiscard]] bool empty(std::uint32_t segment) const noexcept;
  void list_segments(const TenantSpace& tenant);
  void give_up(TenantSpace& tenant, std::uint32_t segment, std::uint32_t stretch);

  Segments& segments_;
  std::uint32_t stretch_pages_;
  std::vector<std::vector<Share>> shares_;                       // by segment; there by the tenant's address
  std::size_t shares_left_;                                      // that may be taken
  std::vector<bool> coarse_;                                     // by segment: tenants have something without a share
  std::vector<std::uint64_t> coarse_from_;                       // by device: the lowest order of these segments
  std::vector<bool> spent_;                                      // by segment
  std::vector<std::pair<std::uint64_t, std::uint32_t>> listed_;  // order and segment; kept for its memory
};

}  // namespace kvd::store
