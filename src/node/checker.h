// Checker: verifies records whose slabs arrived damaged at a client, so that a bit that has turned over in the pool
// does not stay there as a miss that nobody can fill again.
//
// The first reports are looked at at once, the rest one record in a turn of the loop, so that others get theirs.
// Bounded: what exceeds kQueuedMax is forgotten; the client reports again when it is hit again. Belongs to the node's
// loop.
#pragma once

#include <cstdint>
#include <deque>

#include "io/loop.h"
#include "node/namespace_use.h"
#include "store/store.h"

namespace kvd::node {

class Checker {
 public:
  static constexpr std::size_t kQueuedMax = 4096;                        // a request's keys
  static constexpr std::uint64_t kAtOnceBytes = std::uint64_t{8} << 20;  // half a millisecond of hashing

  Checker(io::Loop& loop, store::Store& store) : store_(store), turn_(loop, [this] { next(); }), loop_(loop) {}

  // A message's budget of records that are verified inside report().
  struct AtOnce {
    std::uint64_t bytes = kAtOnceBytes;
  };
  // Verifies the record, now or soon. `bytes`: of its image.
  void report(const SharedNamespace& ns, const block::RecordId& id, std::uint64_t bytes, AtOnce& at_once);

 private:
  struct Report {
    SharedNamespace ns;
    block::RecordId id;
  };
  void next();

  store::Store& store_;
  io::Timer turn_;
  io::Loop& loop_;
  std::deque<Report> queue_;
};

}  // namespace kvd::node
