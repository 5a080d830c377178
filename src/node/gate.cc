#include "node/gate.h"

#include <chrono>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace kvd::node {
namespace {

auth::WallSeconds system_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

Gate::Gate(io::Loop& loop, Log& log, NodeCounters& counters, const NodeOptions& options)
    : loop_(loop),
      log_(log),
      counters_(counters),
      wall_clock_(options.wall_clock ? options.wall_clock : system_seconds),
      authority_(options.authority),
      strangers_(loop, options.limits.strangers_max, options.limits.stranger_grace),
      tenants_({.connections = options.limits.known_connections_max(),
                .rings = options.limits.rings_max,
                .arenas = options.limits.arenas_max(),
                .windows = options.limits.windows_max(),
                .pinned_bytes = options.pinned_max(),
                .unfinished_bytes = options.unfinished_max(),
                .op_keys = options.limits.op_keys_max,
                .leases = options.limits.leases_max,
                .lease_pins = options.limits.lease_pins_max,
                .lease_bytes = options.store.pool_bytes / 100 * options.store.pinned_percent_max}) {
  if (authority_ != nullptr) tenants_.list(authority_->tenants());
}

std::optional<Gate::Admission> Gate::enter(Bytes token, std::string_view peer) {
  const Result<auth::SharedIdentity> identity = authority_->identify(token, wall_clock_());
  if (identity) return admission_of(*identity);
  refuse(peer, identity.error().what);
  return std::nullopt;
}

Result<Gate::Admission> Gate::enter(const io::PeerCertificate& certificate) {
  const auto found = authority_->identify_certificate(certificate.sha256, certificate.names, wall_clock_());
  if (!found) return fail(found.error());
  return admission_of(*found);
}

void Gate::refuse(std::string_view peer, std::string_view why) {
  counters_.unauthorized.add();
  tell(audit_, peer, nullptr, why);
}

void Gate::refuse(std::string_view peer, const auth::Identity& who, std::string_view why) {
  counters_.unauthorized.add();
  tell(audit_, peer, &who, why);
}

void Gate::forbid(std::string_view peer, const auth::Identity* who, std::string_view what) {
  counters_.forbidden.add();
  tell(forbidden_, peer, who, what);
}

void Gate::tell(auth::Audit& audit, std::string_view peer, const auth::Identity* who, std::string_view why) {
  const std::string told = who == nullptr ? std::string(why) : fmt::format("credential '{}': {}", who->credential, why);
  audit.warn(log_, loop_.now(), peer, told);
}

Result<TenantSlot> Gate::take_connection(const SharedTenant& tenant) {
  Result<TenantSlot> taken = tenants_.take_connection(tenant);
  if (!taken) counters_.connections_refused.add();
  return taken;
}

void Gate::replace(std::shared_ptr<const auth::Authority> authority) {
  authority_ = std::move(authority);
  tenants_.list(authority_->tenants());
}

std::optional<Gate::Admission> Gate::renew(const auth::Identity& identity, const io::PeerCertificate* certificate) {
  if (identity.kind == auth::Identity::Kind::kToken) {
    auth::SharedIdentity now = authority_->renew(identity, wall_clock_());
    if (now == nullptr || now->tenant != identity.tenant) return std::nullopt;
    return admission_of(std::move(now));
  }
  if (certificate == nullptr) return std::nullopt;
  Result<Admission> now = enter(*certificate);
  if (!now || now->identity->tenant != identity.tenant) return std::nullopt;
  return std::move(*now);
}

Gate::Admission Gate::admission_of(auth::SharedIdentity identity) {
  SharedTenant tenant = tenants_.get(identity->tenant, identity->quotas);
  return {.identity = std::move(identity), .tenant = std::move(tenant)};
}

RespAccess resp_access(Gate::Admission admission) {
  const auth::Rights rights = admission.identity->rights;
  return RespAccess{.tenant = admission.identity->tenant,
                    .reads = rights.allow(auth::Right::kRead),
                    .writes = rights.allow(auth::Right::kWrite),
                    .identity = std::move(admission.identity),
                    .use = std::move(admission.tenant),
                    .administers = rights.allow(auth::Right::kAdmin)};
}

}  // namespace kvd::node
