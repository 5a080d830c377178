// What bounds all clients: a loop of send and receive without a protocol, which verifies what is put and not what is
// got, memcpy, which verifies nothing, and xxh3, which moves nothing.
#pragma once

#include <cstdint>
#include <memory>

#include "arm.h"

namespace kvd::bench {

// The loop's server: says its port on stdout and serves (raw_server.h). One connection at a time, for ever.
[[noreturn]] void serve_raw();
std::unique_ptr<Arm> open_raw(std::uint16_t port);
// "Got" by memcpy from the source.
std::unique_ptr<Arm> open_memcpy();
// "Got" by hashing the source and comparing the hash.
std::unique_ptr<Arm> open_xxh3();

}  // namespace kvd::bench
