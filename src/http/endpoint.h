// HTTP addresses as people write them, for Boost's sockets.
#pragma once

#include <string>

#include <boost/asio/ip/tcp.hpp>

#include "base/result.h"

namespace kvd::http {

// "127.0.0.1:7071", "[::1]:7071", "localhost:7071": no other names. kInvalid. Pure.
Result<boost::asio::ip::tcp::endpoint> parse_endpoint(const std::string& text);

}  // namespace kvd::http
