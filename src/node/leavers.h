// Leavers: clients that have lost their connection and still read what they were to keep (Holdings). Each stays until
// its keeper is closed: the client gives the last view back, or dies.
//
// What they hold counts in the node's budgets, which bound it. Beyond `leavers_max` of them no new connection is given
// a keeper; those that have one may still become leavers, so there are at most connections_max more. Owned by the node;
// belongs to its loop.
#pragma once

#include <list>
#include <memory>

#include "node/holdings.h"

namespace kvd::node {

class Leavers {
 public:
  explicit Leavers(NodeCounters& counters) : counters_(counters) {}
  ~Leavers() { counters_.leavers.sub(all_.size()); }
  Leavers(const Leavers&) = delete;
  Leavers& operator=(const Leavers&) = delete;

  // Takes what still has kept views, and lets go of the rest. Not from inside a callback of its views.
  void take(std::unique_ptr<Holdings> holdings);
  [[nodiscard]] std::size_t count() const noexcept { return all_.size(); }

 private:
  using Place = std::list<std::unique_ptr<Holdings>>::iterator;
  void on_end(Place place);

  NodeCounters& counters_;
  std::list<std::unique_ptr<Holdings>> all_;
};

}  // namespace kvd::node
