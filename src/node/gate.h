// Gate: who may come in where there are credentials, and as whom. Keeps the authority of the day, tells the log of
// refused attempts at a bounded rate, and bounds how many strangers may stand in front of it. Without credentials it
// stands open and nobody has an identity. Owned by Node; one loop.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "auth/audit.h"
#include "auth/authority.h"
#include "base/log.h"
#include "io/loop.h"
#include "io/stream.h"
#include "node/counters.h"
#include "node/options.h"
#include "node/strangers.h"
#include "node/tenants.h"

namespace kvd::node {

class Gate {
 public:
  // `authority` null: open. All but the authority outlives the gate.
  Gate(io::Loop& loop, Log& log, NodeCounters& counters, const NodeOptions& options);

  // One more connection of a client who is known now; see Tenants. A refusal is counted.
  Result<TenantSlot> take_connection(const SharedTenant& tenant);
  // Rings, an arena or a window for a connection that is in; see Tenants.
  TenantSlot take_rings(const SharedTenant& tenant) { return tenants_.take_rings(tenant); }
  TenantSlot take_arena(const SharedTenant& tenant) { return tenants_.take_arena(tenant); }
  TenantSlot take_window(const SharedTenant& tenant) { return tenants_.take_window(tenant); }
  // What a connection of the tenant takes counts for it; see Tenants.
  void count_for(const SharedTenant& tenant, const TenantCounts& counts) { tenants_.count_for(tenant, counts); }

  [[nodiscard]] bool may_lease(const SharedTenant& tenant) const { return tenants_.may_lease(tenant); }
  [[nodiscard]] std::uint64_t lease_room(const SharedTenant& tenant) const { return tenants_.lease_room(tenant); }
  Leases::TenantShare take_lease(const SharedTenant& tenant) { return tenants_.take_lease(tenant); }

  struct Admission {
    auth::SharedIdentity identity;
    SharedTenant tenant;
  };

  [[nodiscard]] bool open() const noexcept { return authority_ == nullptr; }
  // A place of somebody who has not shown a token yet. Empty: all are taken, by such as need not give way.
  Strangers::Place take_stranger(Strangers::Guest& guest) { return strangers_.take(guest); }
  // Who has this token; nullopt: nobody, which `peer` is in the log for.
  std::optional<Admission> enter(Bytes token, std::string_view peer);
  // Whose certificate this is; see expired(). kNotFound and kStale: nobody's, which is not in the log.
  Result<Admission> enter(const io::PeerCertificate& certificate);
  // Counts and logs an attempt that was refused; the second of somebody who is in, or was.
  void refuse(std::string_view peer, std::string_view why);
  void refuse(std::string_view peer, const auth::Identity& who, std::string_view why);
  // The same for a request that a credential does not allow (`who` may be null), of a connection that goes on.
  void forbid(std::string_view peer, const auth::Identity* who, std::string_view what);

  // Other credentials from now on; not null. Clients that are in have to be asked for with renew().
  void replace(std::shared_ptr<const auth::Authority> authority);
  // What has become of somebody who is in, by a token or by this certificate; nullopt: has to go. Also when its tenant
  // is another one now.
  std::optional<Admission> renew(const auth::Identity& identity, const io::PeerCertificate* certificate);
  [[nodiscard]] bool expired(const auth::Identity& identity) const { return identity.expired(wall_clock_()); }
  // Whether a certificate that was good has expired since; null = there is none.
  [[nodiscard]] bool expired(const io::PeerCertificate* certificate) const {
    return certificate != nullptr && wall_clock_() > certificate->not_after;
  }

  [[nodiscard]] const Tenants& tenants() const noexcept { return tenants_; }

 private:
  Admission admission_of(auth::SharedIdentity identity);
  void tell(auth::Audit& audit, std::string_view peer, const auth::Identity* who, std::string_view why);

  io::Loop& loop_;
  Log& log_;
  NodeCounters& counters_;
  std::function<auth::WallSeconds()> wall_clock_;
  std::shared_ptr<const auth::Authority> authority_;  // with whoever made it
  auth::Audit audit_;
  // Lines of its own: an engine without a right must not hide who guesses tokens on its host.
  auth::Audit forbidden_;
  Strangers strangers_;
  Tenants tenants_;
};

// Who a Redis client is that came in so.
RespAccess resp_access(Gate::Admission admission);

}  // namespace kvd::node
