#include "node/leases.h"

#include <utility>

#include "base/check.h"

namespace kvd::node {

Leases::Leases(io::Loop& loop, store::Store& store, NodeCounters& counters, std::uint32_t leases_max)
    : loop_(loop), store_(store), counters_(counters), leases_max_(leases_max), timer_(loop, [this] { expire(); }) {}

Leases::~Leases() {
  while (!leases_.empty()) end(leases_.begin());
}

std::uint64_t Leases::grant(Owner owner, std::vector<store::Pin> pins, Time expires) {
  KVD_CHECK(has_room() && !pins.empty());
  const std::uint64_t id = next_id_++;
  const auto expiry = expiries_.emplace(expires, id);
  leases_.emplace(id, Lease{.owner = owner, .pins = std::move(pins), .expiry = expiry});
  if (expiry == expiries_.begin()) timer_.arm(expires);
  counters_.leases_granted.add();
  counters_.leases.set(leases_.size());
  return id;
}

bool Leases::release(Owner owner, std::uint64_t id) {
  const auto at = leases_.find(id);
  if (at == leases_.end() || at->second.owner != owner) return false;
  end(at);
  return true;
}

void Leases::release_all(Owner owner) {
  for (auto at = leases_.begin(); at != leases_.end();) {
    const auto next = std::next(at);
    if (at->second.owner == owner) end(at);
    at = next;
  }
}

void Leases::end(std::unordered_map<std::uint64_t, Lease>::iterator at) {
  expiries_.erase(at->second.expiry);
  std::vector<store::Pin> pins = std::move(at->second.pins);
  leases_.erase(at);
  for (store::Pin& pin : pins) store_.unpin_lease(std::move(pin));
  counters_.leases.set(leases_.size());
}

void Leases::expire() {
  while (!expiries_.empty() && expiries_.begin()->first <= loop_.now()) {
    counters_.leases_expired.add();
    end(leases_.find(expiries_.begin()->second));
  }
  if (!expiries_.empty()) timer_.arm(expiries_.begin()->first);
}

}  // namespace kvd::node
