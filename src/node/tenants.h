// TenantUse: what the clients of one tenant have under way together, and what they did, for metrics. Tenants knows them
// by name. Written on the node's loop; the counters may be read by any thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "auth/identity.h"
#include "base/metric.h"
#include "node/budget.h"

namespace kvd::node {

struct TenantUse {
  explicit TenantUse(std::string tenant) : name(std::move(tenant)), requests(auth::Quotas::kUnlimited) {}
  const std::string name;
  Budget requests;  // in flight: GETs, PUTs, REMOVEs and MATCHes of many records
  Counter accepted, refused;
};

// Owners: Tenants, sessions of the tenant's clients, and requests that outlive their session.
using SharedTenant = std::shared_ptr<TenantUse>;

// A request in flight.
struct TenantSlot {
  SharedTenant tenant;  // before the share, which gives itself back to it
  Budget::Share share;
};

class Tenants {
 public:
  // Named in metrics by themselves; those beyond are summed.
  static constexpr std::size_t kShownMax = 64;

  // The tenant's, with these quotas from now on. Loop thread.
  SharedTenant get(const std::string& name, const auth::Quotas& quotas);

  struct Figure {
    std::string name;
    std::uint64_t accepted = 0, refused = 0;
  };
  // Of at most kShownMax tenants, in order of their names, and of all others as "(others)". Any thread.
  [[nodiscard]] std::vector<Figure> figures() const;

 private:
  mutable std::mutex mutex_;  // of the map; what is in it stays until the end
  std::map<std::string, SharedTenant> tenants_;
};

}  // namespace kvd::node
