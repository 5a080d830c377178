// Leases: pins that a client holds for a while, so that what a match found is still in the pool when it is asked for.
// A lease ends by release(), at its expiry, or with its owner's connection. Belongs to the node's loop.
//
// Bounds, of the node and a share of them for one owner: the number of leases and the number of their pins (8 bytes
// each, twice that while a lease grows); and what tenants leave each other of both, and of the store's bound of bytes
// (TenantParts). A record that is leased many times counts each time here, and once in bytes. Pins of leases that have
// ended are given back some thousand in a turn of the loop and count for the node until then.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

#include "io/loop.h"
#include "node/counters.h"
#include "node/options.h"
#include "node/tenant_parts.h"
#include "store/store.h"

namespace kvd::node {

class Leases {
 public:
  using Owner = std::uint64_t;  // a session's number
  // What a lease and its pins count as of the owner's tenant; empty: there are no tenants.
  struct TenantShare {
    TenantParts::Share lease, pins;
    TenantParts::Account bytes;  // of what the store says that its records take
  };

  // All are borrowed.
  Leases(io::Loop& loop, store::Store& store, NodeCounters& counters, const Limits& limits);
  ~Leases();
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  // True when one more lease can be granted to this owner.
  [[nodiscard]] bool has_room(Owner owner) const;
  // Takes the pin, and those that add() brings, until `expires`. Returns the lease's id, never 0. Requires
  // has_room(owner).
  std::uint64_t grant(Owner owner, store::LeasePin pin, Time expires, TenantShare share = {});
  // Takes one more pin. False when the lease has ended or has no room for more; the pin is gone then.
  bool add(std::uint64_t id, store::LeasePin pin);
  // False when this owner has no such lease (any more).
  bool release(Owner owner, std::uint64_t id);
  void release_all(Owner owner);
  [[nodiscard]] std::size_t size() const noexcept { return leases_.size(); }

 private:
  struct Lease {
    Owner owner = 0;
    std::vector<store::Pin> pins;
    TenantShare share;
    std::multimap<Time, std::uint64_t>::iterator expiry;
  };
  // What is left of a lease that has ended.
  struct Ended {
    std::vector<store::Pin> pins;
    TenantShare share;  // without the lease's own
  };
  struct Held {
    std::size_t leases = 0;
    std::size_t pins = 0;
  };

  [[nodiscard]] bool has_room_for_pin(const Held& held) const noexcept;
  void end(std::unordered_map<std::uint64_t, Lease>::iterator at);
  void expire();
  void unpin_some();

  io::Loop& loop_;
  store::Store& store_;
  NodeCounters& counters_;
  const Held max_;        // of the node
  const Held owner_max_;  // of one owner
  io::Timer timer_;
  std::unordered_map<std::uint64_t, Lease> leases_;
  std::unordered_map<Owner, Held> held_;  // by owners that hold any
  std::size_t pins_ = 0;                  // of all leases, and of ended_
  std::multimap<Time, std::uint64_t> expiries_;
  std::deque<Ended> ended_;
  io::Timer unpin_timer_;
  std::uint64_t next_id_ = 1;
};

}  // namespace kvd::node
