// Checker: verifies records whose slabs arrived damaged at a client, so that a bit that has turned over in the pool
// does not stay there as a miss that nobody can fill again.
//
// One of each connection, with its reports. What fits into a turn of the loop, of all connections together, is verified
// at once; the rest stands in their line, a slice of a megabyte or a record at a time. Belongs to the node's loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "block/key.h"
#include "net/slices.h"
#include "node/connection_budget.h"
#include "node/namespace_use.h"
#include "node/turn_allowance.h"
#include "store/store.h"

namespace kvd::node {

class Checker {
 public:
  static constexpr std::size_t kAtOnceBytes = std::size_t{8} << 20;  // of a turn: half a millisecond of hashing
  static constexpr std::size_t kSliceBytes = std::size_t{1} << 20;   // and of who is first in line, or one record

  // All are borrowed.
  Checker(net::SliceLine& line, TurnAllowance& at_once, store::Store& store)
      : user_(line, [this] { return next(); }), at_once_(at_once), store_(store) {}

  // Verifies the first of these records and returns how many: as many as this turn has time for, none where others
  // wait. `bytes`: of the image of one.
  std::size_t verify(const NamespaceUse& ns, std::span<const block::RecordId> ids, std::size_t bytes);
  // These stand in line, copied. `share` is what they count for until they are through.
  void enter(SharedNamespace ns, std::span<const block::RecordId> ids, std::size_t bytes,
             ConnectionBudget::Taken share);
  // Whose reports these are (net::SliceLine).
  void set_share(const void* share) noexcept { user_.set_share(share); }
  // Forgets those that are left.
  void clear() noexcept;

 private:
  struct Reports {
    SharedNamespace ns;
    std::vector<block::RecordId> ids;
    std::size_t bytes = 0;  // of one
    std::size_t next = 0;
    ConnectionBudget::Taken share;
  };
  bool next();

  net::SliceLine::User user_;
  TurnAllowance& at_once_;
  store::Store& store_;
  std::list<Reports> queue_;
};

}  // namespace kvd::node
