// What a node's sessions did, for metrics and statistics. Written on the node's loop, readable from any thread.
#pragma once

#include "base/metric.h"

namespace kvd::node {

struct NodeCounters {
  Counter connections_accepted, connections_refused;
  Counter connections_silent;  // closed before their HELLO: others wanted their place
  Counter unauthorized;        // connections refused for want of a good token
  Counter forbidden;           // requests that their client's token does not allow
  Counter requests_match, requests_get, requests_put, requests_remove;
  Counter answered_busy;        // requests turned away because of a limit
  Counter answered_invalid;     // requests that could never succeed
  Counter cancelled, timeouts;  // requests ended by their client or by their deadline
  Counter keys_got, keys_missed, keys_put, keys_put_failed, keys_put_present;
  Counter put_corrupt;  // slabs whose checksum did not match when they arrived
  Counter match_blocks, match_blocks_hit;
  Counter leases_granted, leases_expired;
  Counter bytes_lent;       // of slabs that clients were told to read from shared memory
  Counter gets_lent;        // GETs answered so
  Counter gets_not_lent;    // GETs that would have been, but for a bound of what views may hold
  Counter views_expired;    // views that ended by their time
  Counter put_arena_bytes;  // of slabs that came through arenas
  Counter get_window_refused;
  Counter get_window_bytes;  // of slabs that were copied to windows
  Counter resp_commands, resp_hits, resp_misses, resp_bytes_sent, resp_bytes_received;  // of Redis clients
  Gauge resp_connections;
  Gauge connections, ops, leases, op_keys;
  Gauge rings;                                // connections whose messages go through memory
  Gauge arena_bytes;                          // of the memory through which clients put
  Gauge window_bytes;                         // of the memory in which clients are shown what they get
  Gauge pinned_bytes;                         // of the pool, by GETs
  Gauge unfinished_bytes;                     // of the pool, by PUTs
  Gauge views, view_bytes;                    // messages that clients read from shared memory, and their slabs
  Gauge kept_bytes;                           // of the pool, by GETs whose clients keep their views
  Gauge kept_keys;                            // of these GETs
  Gauge leavers;                              // clients without a connection that still keep some
  LatencyHistogram match_us, get_us, put_us;  // from the request's arrival to its last byte in the socket
  FineLatencyHistogram match_residence_us;  // of MATCHes, from when they could have been read; see Loop::ready_since()
};

}  // namespace kvd::node
