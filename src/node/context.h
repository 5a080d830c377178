// What a node lends to its sessions and their operations. Owned by Node, which outlives all of them; one loop.
#pragma once

#include <functional>
#include <string>

#include "base/log.h"
#include "io/loop.h"
#include "net/connection.h"
#include "net/slices.h"
#include "node/budget.h"
#include "node/counters.h"
#include "node/gate.h"
#include "node/leases.h"
#include "node/options.h"
#include "store/store.h"

namespace kvd::node {

class Leavers;
class TurnAllowance;

struct NodeContext {
  io::Loop& loop;
  Log& log;
  store::Store& store;
  const Limits& limits;
  NodeCounters& counters;
  Gate& gate;
  net::NetCounters& net;
  net::Shaper* shaper;                 // null = reads are not slowed down
  net::BodyTurns* turns;               // of all connections of the loop; null = bodies go as they come
  net::MessageMemory& message_memory;  // of connections of all kinds
  net::Movers* movers;                 // threads that send bodies beside the loop's; null = there are none
  Leases& leases;
  net::SliceLine& slices;
  net::SliceLine& messages;  // of connections that have more of them than a turn's worth
  net::SliceLine& checks;    // of connections of Redis clients with values to be verified
  Budget& pinned;            // bytes of the pool that GETs may pin: all records of a GET, from its start to its end
  Budget& lent;              // of these, by GETs whose clients read the pool through shared memory
  Budget& kept;              // of these, by GETs whose clients keep what they are lent
  Budget& kept_keys;  // of these GETs, each as one of `op_keys`; apart, as they last for as long as a client likes
  Leavers& leavers;
  Budget& unfinished;                // records being put
  Budget& op_keys;                   // keys of unfinished operations, each some 300 bytes of bookkeeping
  Budget& rings;                     // connections that have rings; none where they may not be used
  Budget& arenas;                    // bytes of all arenas; none where they may not be used
  Budget& windows;                   // the same of windows
  TurnAllowance& copies;             // to windows, without standing in line
  TurnAllowance& verified_at_once;   // of records that clients report as damaged, the same
  int shared_fd;                     // the pool's, for clients on unix sockets; -1 = they get bytes
  std::uint64_t refusals = 0;        // GETs that had to wait for pins, so far: the order in which they are told of room
  std::function<void()> on_refused;  // called at each of them, and when a Redis client's GET found no room
  bool draining = false;
  std::function<std::string()> stats_json;
};

}  // namespace kvd::node
