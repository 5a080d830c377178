// What a node is told, and the limits it keeps. Plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "kvdepot/types.h"
#include "store/store.h"

namespace kvd::node {

// Bounds of what clients can make a node hold. Reaching one is answered with `busy` or a miss, never with waiting.
struct Limits {
  std::uint32_t connections_max = 1024;       // an engine of 8 GPUs has 16; one more is closed at once
  std::uint32_t ops_max = 256;                // unfinished GETs and PUTs of a connection (told in HELLO)
  std::uint32_t op_keys_max = 1U << 18;       // keys of all unfinished GETs and PUTs of the node: about 80 MB; 8 of a
                                              // large MATCH count as one
  std::uint32_t namespaces_max = 1024;        // open on a connection
  std::uint32_t leases_max = 4096;            // of the node; beyond, a match is answered without a lease
  std::uint32_t lease_pins_max = 1U << 20;    // records of all leases: at most 16 MiB; beyond, a lease ends where it is
  std::uint32_t lease_ms_max = 60'000;        // longer leases are cut to this
  std::uint64_t lookups_max = 1U << 18;       // shards x groups x blocks of a MATCH or REMOVE: 55 ms of the loop at
                                              // 210 ns each, in slices
  std::uint32_t pinned_percent_max = 75;      // share of the pool that GETs may pin while they send; more wait in line
  std::uint32_t unfinished_percent_max = 50;  // share of the pool that unfinished PUTs may hold
  std::uint32_t connection_percent_max = 50;  // share of these two, and of leases, that one connection may take
  std::uint32_t lent_percent_max = 50;        // share of what GETs may pin, of the node and of a connection, for those
                                              // read through shared memory: the others always have the rest
  Duration handshake_limit = std::chrono::seconds(5);  // from connecting to HELLO
  Duration put_idle_limit = std::chrono::seconds(60);  // between two messages of a PUT without a deadline
  Duration stall_limit = std::chrono::seconds(30);     // a peer that does not read, or stops within a message
  Duration view_grace = std::chrono::seconds(1);  // a view outlives its GET's deadline by this, and lasts no longer
                                                  // than stall_limit
};

// What a Redis client may do, and in whose name.
struct RespAccess {
  std::string tenant = "default";
  bool reads = true;
  bool writes = true;
};

struct NodeOptions {
  store::StoreOptions store;
  std::vector<std::string> listen;        // tcp://HOST:PORT, unix:///PATH; may be empty (embedded: adopt())
  std::vector<std::string> resp;          // addresses like these where Redis clients are served; mostly none
  AckLevel resp_ack = AckLevel::kPooled;  // what their SETs wait for; beyond kPooled a flash tier is needed
  // Who a Redis client is, by the token that it says with AUTH; nothing: nobody. Empty = nobody has to say it.
  std::function<std::optional<RespAccess>(std::string_view token)> resp_identify;
  std::string http;                          // HOST:PORT of /metrics and /healthz; empty = off
  std::uint64_t shape_read_bytes_per_s = 0;  // slows GET payload down to this on purpose; 0 = off
  bool shared_memory = true;  // clients of this host and user may read the pool; not when reads are slowed down
  Limits limits;
};

}  // namespace kvd::node
