#include "node/tenants.h"

#include <algorithm>

namespace kvd::node {

SharedTenant Tenants::get(const std::string& name, const auth::Quotas& quotas) {
  const std::scoped_lock lock(mutex_);
  forget_gone();
  return find(name, quotas);
}

SharedTenant& Tenants::find(const std::string& name, const auth::Quotas& quotas) {
  SharedTenant& tenant = tenants_[name];
  if (tenant == nullptr) tenant = std::make_shared<TenantUse>(name);
  tenant->requests.set_max(quotas.requests);
  for (Budget* const budget : {&tenant->connections, &tenant->rings, &tenant->arenas, &tenant->windows})
    budget->set_max(quotas.connections);
  return tenant;
}

void Tenants::list(const std::map<std::string, auth::Quotas>& tenants) {
  const std::scoped_lock lock(mutex_);
  for (const auto& [name, quotas] : tenants) find(name, quotas);
  for (TenantParts* const parts : {&pinned_, &unfinished_, &op_keys_, &leases_, &lease_pins_, &lease_bytes_})
    parts->set_count(tenants.size());
  for (const auto& [name, tenant] : tenants_) {
    tenant->listed = tenants.contains(name);
    tenant->gone = !tenant->listed;
    pinned_.set_listed(tenant->pinned, tenant->listed);
    unfinished_.set_listed(tenant->unfinished, tenant->listed);
    op_keys_.set_listed(tenant->op_keys, tenant->listed);
    leases_.set_listed(tenant->leases, tenant->listed);
    lease_pins_.set_listed(tenant->lease_pins, tenant->listed);
    lease_bytes_.set_listed(tenant->lease_bytes, tenant->listed);
  }
  listed_ = tenants.size();
  forget_gone();
}

// Those that are not listed any more and that nobody is of.
void Tenants::forget_gone() {
  if (tenants_.size() == listed_) return;
  std::erase_if(tenants_, [](const auto& entry) { return entry.second->gone && entry.second.use_count() == 1; });
}

// Looks at all tenants, which are a thousand at most, as often as a connection is let in. A tenant that has less than
// its part gets what is free even where others, by an earlier list, have more than theirs.
bool Tenants::leaves_others_theirs(const TenantUse& tenant, Use use, std::uint64_t total) const {
  const std::uint64_t part = total / 2 / std::max<std::size_t>(listed_, 1);
  const std::uint64_t own = tenant.listed ? std::min(part, (tenant.*use).bytes_max()) : 0;
  const bool keeps_for_others = (tenant.*use).used() >= own;
  std::uint64_t taken = 0;  // or kept for others than this one
  for (const auto& [name, other] : tenants_) {
    const Budget& others = (*other).*use;
    const bool keeps = keeps_for_others && other->listed && other.get() != &tenant;
    taken += keeps ? std::max(others.used(), std::min(part, others.bytes_max())) : others.used();
  }
  return taken < total;
}

TenantSlot Tenants::take(const SharedTenant& tenant, Use use, std::uint64_t total) {
  if (!leaves_others_theirs(*tenant, use, total)) return {};
  return {.tenant = tenant, .share = ((*tenant).*use).take(1)};
}

Result<TenantSlot> Tenants::take_connection(const SharedTenant& tenant) {
  const char* why = "the tenant has as many connections as it may";
  if (tenant->connections.has_room(1)) {
    if (TenantSlot slot = take(tenant, &TenantUse::connections, totals_.connections); slot.share) return slot;
    why = "the connections that are left are kept for other tenants";
  }
  tenant->connections_refused.add();
  return fail(Code::kBusy, why);
}

TenantSlot Tenants::take_rings(const SharedTenant& tenant) { return take(tenant, &TenantUse::rings, totals_.rings); }

TenantSlot Tenants::take_arena(const SharedTenant& tenant) { return take(tenant, &TenantUse::arenas, totals_.arenas); }

TenantSlot Tenants::take_window(const SharedTenant& tenant) {
  return take(tenant, &TenantUse::windows, totals_.windows);
}

void Tenants::count_for(const SharedTenant& tenant, const TenantCounts& counts) {
  counts.pinned.set_tenant(pinned_, {tenant, &tenant->pinned});
  counts.unfinished.set_tenant(unfinished_, {tenant, &tenant->unfinished});
  if (counts.op_keys != nullptr) counts.op_keys->set_tenant(op_keys_, {tenant, &tenant->op_keys});
}

bool Tenants::may_lease(const SharedTenant& tenant) const {
  return tenant == nullptr || (leases_.may_take(tenant->leases, 1) && lease_pins_.may_take(tenant->lease_pins, 1));
}

std::uint64_t Tenants::lease_room(const SharedTenant& tenant) const {
  return tenant == nullptr ? std::numeric_limits<std::uint64_t>::max() : lease_bytes_.room(tenant->lease_bytes);
}

Leases::TenantShare Tenants::take_lease(const SharedTenant& tenant) {
  if (tenant == nullptr) return {};
  return {.lease = leases_.take({tenant, &tenant->leases}, 1),
          .pins = lease_pins_.take({tenant, &tenant->lease_pins}, 1),
          .bytes = {lease_bytes_, {tenant, &tenant->lease_bytes}}};
}

std::vector<Tenants::Figure> Tenants::figures() const {
  const std::scoped_lock lock(mutex_);
  std::vector<Figure> figures;
  for (const auto& [name, tenant] : tenants_) {
    if (figures.size() == kShownMax) figures.push_back({"(others)"});
    const bool shown = figures.size() < kShownMax;
    Figure& figure = shown ? figures.emplace_back(Figure{name}) : figures.back();
    figure.accepted += tenant->accepted.value();
    figure.refused += tenant->refused.value();
    figure.in_flight += tenant->in_flight.value();
    figure.connections += tenant->connected.value();
    figure.connections_refused += tenant->connections_refused.value();
    figure.rings += tenant->with_rings.value();
    figure.arenas += tenant->with_arena.value();
    figure.windows += tenant->with_window.value();
    figure.records_got += tenant->records_got.value();
    figure.records_missed += tenant->records_missed.value();
    figure.bytes_sent += tenant->bytes_sent.value();
    figure.bytes_received += tenant->bytes_received.value();
  }
  return figures;
}

}  // namespace kvd::node
