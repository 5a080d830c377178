// Holdings: what one connection holds of the pool by reading it: its budgets, its views, and the pipe whose other end
// is the client's keeper.
//
// Mostly it ends with its session. Where the client still has views that it was to keep, and has not closed its keeper,
// it stays without the session until the keeper is closed (Leavers): not before that can the memory be used for
// anything else. So bytes that a client was promised do not change under it, whoever ends the connection. Owned by a
// session, then by Leavers; belongs to the node's loop.
#pragma once

#include "node/context.h"
#include "node/keeper_pipe.h"
#include "node/pins.h"
#include "node/views.h"

namespace kvd::node {

struct Holdings {
  explicit Holdings(NodeContext& context);

  Pins pins;                   // of the node's `pinned`
  Budget lent;                 // of the node's `lent`
  Budget kept;                 // of the node's `kept`
  ConnectionBudget kept_keys;  // of the node's `kept_keys`
  ConnectionBudget op_keys;    // of the node's `op_keys`
  Views views;                 // end before the budgets do: what they unpin gives back to these
  KeeperPipe keeper;           // not held = nothing may be kept
};

}  // namespace kvd::node
