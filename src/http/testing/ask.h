// Requests to an HTTP server as bytes, for tests: also what no client would send.
#pragma once

#include <string>
#include <string_view>

namespace kvd::http {

// A connection to a server's "127.0.0.1:PORT"; the caller closes it. Fails the test where nobody listens.
int connect_to(const std::string& address);

// Sends `request` on a connection of its own and reads until the server ends it: blocks so long.
std::string ask(const std::string& address, std::string_view request);

}  // namespace kvd::http
