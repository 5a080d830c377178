#include "node/leases.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvd::node {
namespace {

constexpr std::size_t kUnpinnedAtOnce = 4096;  // less than a millisecond of the loop

std::size_t share_of(std::size_t max, std::uint32_t percent) { return std::max<std::size_t>(max * percent / 100, 1); }

}  // namespace

Leases::Leases(io::Loop& loop, store::Store& store, NodeCounters& counters, const Limits& limits)
    : loop_(loop),
      store_(store),
      counters_(counters),
      max_{.leases = limits.leases_max, .pins = limits.lease_pins_max},
      owner_max_{.leases = share_of(limits.leases_max, limits.connection_percent_max),
                 .pins = share_of(limits.lease_pins_max, limits.connection_percent_max)},
      timer_(loop, [this] { expire(); }),
      unpin_timer_(loop, [this] { unpin_some(); }) {}

Leases::~Leases() {
  while (!leases_.empty()) end(leases_.begin());
  while (!ended_.empty()) unpin_some();
}

bool Leases::has_room_for_pin(const Held& held) const noexcept {
  return pins_ < max_.pins && held.pins < owner_max_.pins;
}

bool Leases::has_room(Owner owner) const {
  const auto at = held_.find(owner);
  const Held held = at == held_.end() ? Held{} : at->second;
  return leases_.size() < max_.leases && held.leases < owner_max_.leases && has_room_for_pin(held);
}

std::uint64_t Leases::grant(Owner owner, store::LeasePin pin, Time expires, TenantShare share) {
  KVD_CHECK(has_room(owner));
  const std::uint64_t id = next_id_++;
  const auto expiry = expiries_.emplace(expires, id);
  const auto at =
      leases_.emplace(id, Lease{.owner = owner, .pins = {}, .share = std::move(share), .expiry = expiry}).first;
  at->second.share.bytes.take(pin.bytes);
  at->second.pins.push_back(std::move(pin.pin));
  Held& held = held_[owner];
  ++held.leases;
  ++held.pins;
  ++pins_;
  if (expiry == expiries_.begin()) timer_.arm(expires);
  counters_.leases_granted.add();
  counters_.leases.set(leases_.size());
  return id;
}

bool Leases::add(std::uint64_t id, store::LeasePin pin) {
  const auto at = leases_.find(id);
  if (at == leases_.end() || !has_room_for_pin(held_[at->second.owner]) || !at->second.share.pins.grow(1)) {
    store_.unpin_lease(std::move(pin.pin));
    return false;
  }
  at->second.share.bytes.take(pin.bytes);
  at->second.pins.push_back(std::move(pin.pin));
  ++held_[at->second.owner].pins;
  ++pins_;
  return true;
}

bool Leases::release(Owner owner, std::uint64_t id) {
  const auto at = leases_.find(id);
  if (at == leases_.end() || at->second.owner != owner) return false;
  end(at);
  if (!unpin_timer_.armed()) unpin_some();
  return true;
}

void Leases::release_all(Owner owner) {
  for (auto at = leases_.begin(); at != leases_.end();) {
    const auto next = std::next(at);
    if (at->second.owner == owner) end(at);
    at = next;
  }
  if (!unpin_timer_.armed()) unpin_some();
}

void Leases::end(std::unordered_map<std::uint64_t, Lease>::iterator at) {
  expiries_.erase(at->second.expiry);
  const auto held = held_.find(at->second.owner);
  held->second.pins -= at->second.pins.size();
  if (--held->second.leases == 0) held_.erase(held);
  at->second.share.lease.release();
  ended_.push_back({std::move(at->second.pins), std::move(at->second.share)});
  leases_.erase(at);
  counters_.leases.set(leases_.size());
}

void Leases::unpin_some() {
  std::size_t unpinned = 0;
  while (!ended_.empty() && unpinned < kUnpinnedAtOnce) {
    auto& [pins, share] = ended_.front();
    for (; !pins.empty() && unpinned < kUnpinnedAtOnce; ++unpinned) {
      share.bytes.give_back(store_.unpin_lease(std::move(pins.back())));
      pins.pop_back();
    }
    if (pins.empty()) ended_.pop_front();
  }
  pins_ -= unpinned;
  if (!ended_.empty()) unpin_timer_.arm(loop_.now());
}

void Leases::expire() {
  while (!expiries_.empty() && expiries_.begin()->first <= loop_.now()) {
    counters_.leases_expired.add();
    end(leases_.find(expiries_.begin()->second));
  }
  if (!unpin_timer_.armed()) unpin_some();
  if (!expiries_.empty()) timer_.arm(expiries_.begin()->first);
}

}  // namespace kvd::node
