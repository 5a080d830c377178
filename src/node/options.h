// What a node is told, and the limits it keeps. Plain values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "auth/authority.h"
#include "base/time.h"
#include "kvdepot/types.h"
#include "store/store.h"
#include "tls/context.h"

namespace kvd::node {

// Bounds of what clients can make a node hold. Reaching one is answered with `busy` or a miss, never with waiting.
struct Limits {
  std::uint32_t connections_max = 1024;       // an engine of 8 GPUs has 16; one more takes the place of the oldest that
                                              // has not said HELLO, or is closed at once
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
  std::uint32_t kept_percent_max = 50;        // share of that, for views that clients keep for as long as they like:
                                              // of the pool 19 % of all of them, 9 % of one connection
  std::uint32_t leavers_max = 64;             // clients without a connection that still keep some, before new ones
                                              // may keep nothing
  std::uint32_t strangers_max = 128;          // connections of people who are not known yet, where they
                                              // have to be, or who have to shake hands (TLS)
  // Of all connections those that clients may have who have said who they are, where they have to: the rest is for
  // people to come in by.
  [[nodiscard]] std::uint32_t known_connections_max() const noexcept {
    return connections_max - std::min(strangers_max, connections_max / 8);
  }
  Duration stranger_grace = std::chrono::milliseconds(20);  // that each of them has before it gives way to a newcomer:
                                                            // 6,400 newcomers a second, each with time to speak
  Duration refusal_delay = std::chrono::milliseconds(500);  // before a wrong token is answered: 256 guesses a second
  Duration handshake_limit = std::chrono::seconds(5);       // from connecting to HELLO, and its token
  // The same of a connection whose stream gives its own handshake that much, and then tells why it was refused.
  [[nodiscard]] Duration introduction_limit(bool secure) const noexcept {
    return handshake_limit + (secure ? std::chrono::seconds(1) : Duration::zero());
  }
  Duration put_idle_limit = std::chrono::seconds(60);  // between two messages of a PUT without a deadline
  Duration op_limit = std::chrono::minutes(10);        // of a GET, and the longest deadline that a GET or PUT may have:
                                                       // they hold parts of the pool
  Duration stall_limit = std::chrono::seconds(30);     // a peer that does not read, or stops within a message
  Duration contended_stall_limit = std::chrono::seconds(1);  // of a peer that does not read what it was sent from the
                                                             // pool, while others wait for their part of it
  std::uint64_t progress_bytes_min = 1U << 20;  // in that time, by a peer that is read or written without a pause
  std::size_t reply_bytes_max = std::size_t{4} << 20;         // replies that wait for one connection
  std::size_t message_bytes_all_max = std::size_t{64} << 20;  // of messages that have not come in whole, of all
  std::size_t reply_bytes_all_max = std::size_t{64} << 20;    // and for all; beyond it each may have 64 KiB
  std::uint32_t rings_max = 256;  // connections that have rings; the others use their socket. 260 KiB each
  // Memory through which a client of this host hands over what it puts, each its own; 0 = there is none. Besides the
  // pool: 4 MiB of it are used where slabs are small. Whoever comes when all have that much sends bytes.
  std::uint64_t arena_bytes = std::uint64_t{16} << 20;
  std::uint64_t arena_bytes_all_max = std::uint64_t{1} << 30;
  [[nodiscard]] std::uint64_t arenas_max() const noexcept {
    return arena_bytes == 0 ? 0 : arena_bytes_all_max / arena_bytes;
  }
  // Memory in which a client of this host that may not see the pool is shown what it gets, each its own; as above.
  std::uint64_t window_bytes = std::uint64_t{32} << 20;
  std::uint64_t window_bytes_all_max = std::uint64_t{1} << 30;
  [[nodiscard]] std::uint64_t windows_max() const noexcept {
    return window_bytes == 0 ? 0 : window_bytes_all_max / window_bytes;
  }
  // Copied to windows in a turn of the loop: by all sessions at once, of which one has a quarter, and by who is first
  // in line. 0.1 ms each where pages have been written to before.
  std::size_t copied_at_once = std::size_t{256} << 10;
  std::size_t copied_in_slice = std::size_t{1} << 20;
  Duration view_grace = std::chrono::seconds(1);  // a view outlives its GET's deadline by this, and lasts no longer
                                                  // than stall_limit
};

struct TenantUse;

// What a Redis client may do, and in whose name.
struct RespAccess {
  std::string tenant = "default";
  bool reads = true;
  bool writes = true;
  auth::SharedIdentity identity = nullptr;   // of a credential, which may expire
  std::shared_ptr<TenantUse> use = nullptr;  // where its requests are counted and bounded; null = nowhere
  bool administers = true;                   // sees the figures of all tenants
};

struct NodeOptions {
  store::StoreOptions store;
  std::vector<std::string> listen;  // tcp://HOST:PORT, tls://HOST:PORT, unix:///PATH; may be empty (embedded: adopt())
  std::vector<std::string> resp;    // addresses like these where Redis clients are served; mostly none
  AckLevel resp_ack = AckLevel::kPooled;  // what their SETs wait for; beyond kPooled a flash tier is needed
  // Who a Redis client is, by the token that it says with AUTH; nothing: nobody. Empty = as the credentials say, and
  // without any nobody has to say it.
  std::function<std::optional<RespAccess>(std::string_view token)> resp_identify;
  std::string http;                          // HOST:PORT of /metrics and /healthz; empty = off
  std::uint64_t shape_read_bytes_per_s = 0;  // slows GET payload down to this on purpose; 0 = off
  // Clients of this host and user are given memory: the pool to read from, and rings and arenas of their own. Not when
  // reads are slowed down, and where there are credentials the pool only to whom they allow it.
  bool shared_memory = true;
  bool rings = true;                                 // rings are among it
  Duration spin = std::chrono::microseconds(50);     // that the loop looks for more before it sleeps; 0 = not
  std::uint32_t cores = 1;                           // threads that move bodies: the loop's, and more that send
  bool serve_recovering = false;                     // start() listens at once and leaves recovery to recover()
  io::DiskFactory* disks = nullptr;                  // where the flash file is opened; borrowed, null = the real disks
  std::shared_ptr<const auth::Authority> authority;  // who may come in, as Node::set_authority(); null = everybody
  std::shared_ptr<tls::Context> tls;                 // of tls:// addresses; null = there are none. Also its maker's
  bool insecure = false;                             // without one: listen also where other machines come from
  std::function<auth::WallSeconds()> wall_clock;     // for the expiry of credentials; empty = the system's
  Limits limits;

  // Of the pool, in bytes: what GETs may pin, and unfinished PUTs may have.
  [[nodiscard]] std::uint64_t pinned_max() const noexcept { return store.pool_bytes / 100 * limits.pinned_percent_max; }
  [[nodiscard]] std::uint64_t unfinished_max() const noexcept {
    return store.pool_bytes / 100 * limits.unfinished_percent_max;
  }
};

}  // namespace kvd::node
