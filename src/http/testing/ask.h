// Requests to an HTTP server as bytes, for tests: also what no client would send.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvd::http {

// A connection to a server's "127.0.0.1:PORT"; the caller closes it. Fails the test where nobody listens. `from`: an
// address of this host; each has its own ports.
int connect_to(const std::string& address, std::uint32_t from = 0x7F00'0001);

// Sends `request` on a connection of its own and reads until the server ends it: blocks so long.
std::string ask(const std::string& address, std::string_view request);

}  // namespace kvd::http
