// Leases: pins that a client holds for a while, so that what a match found is still in the pool when it is asked for.
// A lease ends by release(), at its expiry, or with its owner's connection. Belongs to the node's loop.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "io/loop.h"
#include "node/counters.h"
#include "store/store.h"

namespace kvd::node {

class Leases {
 public:
  using Owner = std::uint64_t;  // a session's number

  Leases(io::Loop& loop, store::Store& store, NodeCounters& counters, std::uint32_t leases_max);
  ~Leases();
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  // True when one more can be granted.
  [[nodiscard]] bool has_room() const noexcept { return leases_.size() < leases_max_; }
  // Takes the pins until `expires`. Returns the lease's id, never 0. Requires has_room() and at least one pin.
  std::uint64_t grant(Owner owner, std::vector<store::Pin> pins, Time expires);
  // False when this owner has no such lease (any more).
  bool release(Owner owner, std::uint64_t id);
  void release_all(Owner owner);
  [[nodiscard]] std::size_t size() const noexcept { return leases_.size(); }

 private:
  struct Lease {
    Owner owner = 0;
    std::vector<store::Pin> pins;
    std::multimap<Time, std::uint64_t>::iterator expiry;
  };

  void end(std::unordered_map<std::uint64_t, Lease>::iterator at);
  void expire();

  io::Loop& loop_;
  store::Store& store_;
  NodeCounters& counters_;
  std::uint32_t leases_max_;
  io::Timer timer_;
  std::unordered_map<std::uint64_t, Lease> leases_;
  std::multimap<Time, std::uint64_t> expiries_;
  std::uint64_t next_id_ = 1;
};

}  // namespace kvd::node
