// TenantUse: what the clients of one tenant have under way together, and what they did, for metrics. Tenants knows them
// by name, and shares the depot's connections out among them. Written on the node's loop; counters and gauges may be
// read by any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "auth/identity.h"
#include "base/metric.h"
#include "base/result.h"
#include "node/budget.h"
#include "node/connection_budget.h"
#include "node/leases.h"
#include "node/tenant_parts.h"

namespace kvd::node {

struct TenantUse {
  explicit TenantUse(std::string tenant)
      : name(std::move(tenant)),
        requests(auth::Quotas::kUnlimited, &in_flight),
        connections(auth::Quotas::kUnlimited, &connected),
        rings(auth::Quotas::kUnlimited, &with_rings),
        arenas(auth::Quotas::kUnlimited, &with_arena),
        windows(auth::Quotas::kUnlimited, &with_window) {}
  const std::string name;
  Gauge in_flight, connected, with_rings, with_arena, with_window;
  Budget requests;                      // in flight: GETs, PUTs, REMOVEs and MATCHes of many records
  Budget connections;                   // of clients that have said who they are
  Budget rings, arenas, windows;        // of these connections those that have them
  TenantParts::Own pinned, unfinished;  // bytes of the pool, by GETs and by PUTs
  TenantParts::Own op_keys, leases, lease_pins, lease_bytes;
  Counter accepted, refused;
  Counter connections_refused;
  Counter records_got, records_missed;  // that were asked for
  Counter bytes_sent, bytes_received;   // of records and values
  bool listed = false;                  // somebody in the credentials of the day is of it
  bool gone = false;                    // nobody is, since others came
};

// Owners: Tenants, sessions of the tenant's clients, and requests that outlive their session.
using SharedTenant = std::shared_ptr<TenantUse>;

// A request in flight, a connection, or what a connection has: rings, an arena, a window.
struct TenantSlot {
  SharedTenant tenant;  // before the share, which gives itself back to it
  Budget::Share share;
};

// What all tenants together may have.
struct TenantTotals {
  std::uint64_t connections = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t rings = 0;
  std::uint64_t arenas = 0;
  std::uint64_t windows = 0;
  std::uint64_t pinned_bytes = 0;
  std::uint64_t unfinished_bytes = 0;
  std::uint64_t op_keys = 0;
  std::uint64_t leases = 0;
  std::uint64_t lease_pins = 0;
  std::uint64_t lease_bytes = 0;
};

// The budgets of one connection that count for its tenant.
struct TenantCounts {
  ConnectionBudget& pinned;
  ConnectionBudget& unfinished;
  ConnectionBudget* op_keys = nullptr;  // null: it takes none
};

class Tenants {
 public:
  // Named in metrics by themselves; those beyond are summed.
  static constexpr std::size_t kShownMax = 64;

  explicit Tenants(const TenantTotals& totals = {})
      : totals_(totals),
        pinned_(totals.pinned_bytes),
        unfinished_(totals.unfinished_bytes),
        op_keys_(totals.op_keys),
        leases_(totals.leases),
        lease_pins_(totals.lease_pins),
        lease_bytes_(totals.lease_bytes) {}

  // These tenants are the ones of the day, with their quotas. Others are forgotten when nobody is of them any more.
  // What is beyond a quota that has become smaller stays until it ends by itself. Loop thread.
  void list(const std::map<std::string, auth::Quotas>& tenants);
  // The tenant's, with these quotas from now on. Loop thread.
  SharedTenant get(const std::string& name, const auth::Quotas& quotas);

  // One connection more of the tenant. kBusy: it has as many as it may, or what is left is kept for others: half of all
  // connections are shared out evenly among the listed tenants, and nobody else gets of a tenant's part. So whoever
  // opens as many as it can keeps no other tenant out. Loop thread.
  Result<TenantSlot> take_connection(const SharedTenant& tenant);
  // Rings, an arena or a window for one of its connections. Shared out in the same way, so that no tenant has all of
  // them; empty: what is left is kept for others. Loop thread.
  TenantSlot take_rings(const SharedTenant& tenant);
  TenantSlot take_arena(const SharedTenant& tenant);
  TenantSlot take_window(const SharedTenant& tenant);
  // Bytes that GETs may not pin, as they are kept for tenants. Loop thread.
  [[nodiscard]] std::uint64_t pinned_kept() const noexcept { return pinned_.kept(); }
  // What a connection of the tenant takes counts for it from now on; see TenantParts. Loop thread.
  void count_for(const SharedTenant& tenant, const TenantCounts& counts);
  // Whether a lease with its first record leaves other tenants theirs, and what it takes then. Null: of no tenant.
  [[nodiscard]] bool may_lease(const SharedTenant& tenant) const;
  // Bytes of records that its leases may have beside what they have. Null: as above.
  [[nodiscard]] std::uint64_t lease_room(const SharedTenant& tenant) const;
  Leases::TenantShare take_lease(const SharedTenant& tenant);

  struct Figure {
    std::string name;
    std::uint64_t accepted = 0, refused = 0, in_flight = 0, connections = 0, connections_refused = 0, rings = 0,
                  arenas = 0, windows = 0, records_got = 0, records_missed = 0, bytes_sent = 0, bytes_received = 0;
  };
  // Of at most kShownMax tenants, in order of their names, and of all others as "(others)". Any thread.
  [[nodiscard]] std::vector<Figure> figures() const;

 private:
  // What a tenant has of what is shared out.
  using Use = Budget TenantUse::*;
  [[nodiscard]] bool leaves_others_theirs(const TenantUse& tenant, Use use, std::uint64_t total) const;
  TenantSlot take(const SharedTenant& tenant, Use use, std::uint64_t total);
  SharedTenant& find(const std::string& name, const auth::Quotas& quotas);
  void forget_gone();

  const TenantTotals totals_;
  TenantParts pinned_, unfinished_, op_keys_, leases_, lease_pins_, lease_bytes_;
  std::size_t listed_ = 0;
  mutable std::mutex mutex_;  // of the map; what is in it stays as long as it is listed or used
  std::map<std::string, SharedTenant> tenants_;
};

}  // namespace kvd::node
