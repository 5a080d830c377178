// Pins: what one connection may pin of the pool for its GETs.
//
// Who asks and does not read keeps what was pinned for it until it is cut. However little each of them may have, many
// leave nothing to others. So the last sixteenth of the node's (a small GET is a 64th at most, see Budget) is for
// connections that hold nothing, or little with it (a 256th: what was lent and is given back with the next request),
// and whose clients have taken before at least as much as they would hold then: to take it from others for the second
// until one is cut costs as much reading, each time anew. Who holds more has at most four times of what is left beside
// that sixteenth: n who want everything leave 15/16 / (4 n + 1) to who has taken nothing yet. None of this holds within
// the part that is kept for a tenant.
#pragma once

#include <cstdint>
#include <functional>

#include "node/connection_budget.h"

namespace kvd::node {

class Pins : public ConnectionBudget {
 public:
  using ConnectionBudget::ConnectionBudget;

  // Whether so much more may be taken of both now; when not, on_room comes as of has_room().
  [[nodiscard]] bool may_take(std::uint64_t bytes);

  // What its client has taken so far of what it was sent or lent. Asked only where little is left; empty: nothing.
  std::function<std::uint64_t()> taken;
};

}  // namespace kvd::node
