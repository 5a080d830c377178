// TenantSpaces: what each tenant takes up of pool and flash, and what it may. One entry for each tenant that has a
// quota or a namespace that the store knows, so there are no more than namespaces and lines of a credentials file, at
// some 300 bytes and 420 for each device.
//
// Bytes of the pool are those of all images: records, puts that are not finished, copies for a single get; those of
// flash are of records that may be found there. Pool, Demoter and FlashUsage count them where they come and go. The
// store's loop owns everything here; figures() is for any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/metric.h"
#include "store/coarse_usage.h"
#include "store/list.h"
#include "store/pool_record.h"
#include "store/segments.h"
#include "store/store.h"

namespace kvd::store {

// What a tenant has on one device: FlashUsage's.
struct TenantFlash {
  CoarseUsage coarse;  // in segments without a share for it
  LogPosition floor;   // what lies before it is given up
  LogPosition end;     // behind all that was written
};

struct TenantSpace {
  explicit TenantSpace(std::string tenant, std::size_t devices = 1) : name(std::move(tenant)), on_device(devices) {}

  const std::string name;
  SpaceQuota quota;              // changed by TenantSpaces alone: another thread may be reading it
  std::uint32_t namespaces = 0;  // of this tenant that the store knows
  Gauge opened;                  // of these, that somebody has open
  Counter open_refused;

  // Of the pool.
  Gauge pool_bytes;
  Counter pool_refused;    // images for which there was no room within the quota
  Counter pool_evictions;  // records that went for others of the same tenant
  // What may be evicted, least recently used first; kept by the pool, also without a quota: one may come.
  List<PoolRecord, &PoolRecord::tenant_link> clean;
  std::uint64_t clean_bytes = 0;  // of the records in it
  // What waits to be written, and whether it is to be written now because it fills the quota: the demoter's.
  std::uint64_t dirty_bytes = 0;
  List<PoolRecord, &PoolRecord::tenant_link> waiting;  // for which nobody waits, in order of publication
  bool pressing = false;
  ListLink<TenantSpace> pressing_link;
  // What is beyond a quota is being evicted and given up, in slices: the store's.
  bool trimming = false;

  // Of flash: FlashUsage's.
  Gauge flash_bytes;
  Counter flash_given_up;  // bytes that went for others of the same tenant
  std::vector<TenantFlash> on_device;

  // Whether there is room for `bytes` more in the pool.
  [[nodiscard]] bool pool_takes(std::uint64_t bytes) const noexcept {
    return bytes <= quota.pool_bytes && pool_bytes.value() <= quota.pool_bytes - bytes;
  }
  // How many more the pool takes once what may be evicted has gone.
  [[nodiscard]] std::uint64_t pool_room() const noexcept {
    const std::uint64_t kept = pool_bytes.value() - clean_bytes;
    return quota.pool_bytes > kept ? quota.pool_bytes - kept : 0;
  }
};

class TenantSpaces {
 public:
  // `devices`: of the flash tier.
  explicit TenantSpaces(std::size_t devices) : devices_(devices) {}

  // The tenant's, which has one namespace more; until leave().
  TenantSpace& enter(const std::string& tenant);
  void leave(TenantSpace& space);
  // Null: it has neither quota nor namespace.
  [[nodiscard]] TenantSpace* find(const std::string& tenant) const;
  // These tenants have these quotas from now on, the others none. Returns those that have one; they stay until the next
  // call.
  std::vector<TenantSpace*> set_quotas(std::span<const TenantQuota> quotas);
  // Calls `visit` with each, which must not enter or leave.
  void visit(const std::function<void(TenantSpace&)>& visit);
  // See Store::tenant_figures(). Any thread.
  [[nodiscard]] std::vector<TenantFigures> figures(std::size_t max) const;

 private:
  using Spaces = std::map<std::string, std::unique_ptr<TenantSpace>, std::less<>>;
  TenantSpace& at(const std::string& tenant);
  [[nodiscard]] static bool idle(const TenantSpace& space) noexcept;

  const std::size_t devices_;
  mutable std::mutex mutex_;  // of the map and the quotas; the loop's thread alone changes them
  Spaces spaces_;
};

}  // namespace kvd::store
