// What a process's connections did, for metrics and for tests that bound messages and system calls. Owned by the node
// or the client, borrowed by its connections; written on their loop thread, readable from any.
#pragma once

#include "base/metric.h"

namespace kvd::net {

struct NetCounters {
  Counter messages_in, messages_out;  // whole messages
  Counter bytes_in, bytes_out;
  Counter recv_calls, send_calls;  // system calls that move bytes
  Counter moves, moved_bytes;      // hand-overs to threads that move bodies, and what these sent, all in bytes_out
  Counter protocol_errors;         // connections ended because of what the peer sent
  Counter stalled;                 // connections cut because the peer stopped reading or writing, or was too slow
  Counter unfinished_ended;        // connections ended for what all hold of messages (MessageMemory)
  Gauge owned_bytes;               // headers, metas and encrypted bytes that wait to be sent
};

}  // namespace kvd::net
