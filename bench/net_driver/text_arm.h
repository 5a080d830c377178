// Redis and memcached by a client of our own, as lean as their protocols let one be: requests pipelined, bodies sent
// from where they lie and received where they belong, each value verified by xxh3 as the depot's client verifies its
// slabs.
#pragma once

#include <cstdint>
#include <memory>

#include "arm.h"

namespace kvd::bench {

// RESP2: SET and GET.
std::unique_ptr<Arm> open_redis(std::uint16_t port);
// The meta protocol: ms and mg.
std::unique_ptr<Arm> open_memcached(std::uint16_t port);

}  // namespace kvd::bench
