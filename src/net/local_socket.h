// The unix socket beside a TCP port: a depot that listens on a loopback port listens there, too, because memory can
// be lent on unix sockets only and most clients are told of a port. Its name is made of address and port and is
// abstract (no file): whoever can reach the loopback port can reach it, as both belong to the network namespace. It has
// no mode, so each side looks at whose process the other is. Plain functions, any thread.
#pragma once

#include <optional>

#include "net/address.h"

namespace kvd::net {

// The unix socket beside this TCP address; empty unless the address is a loopback one with a port.
std::optional<Endpoint> local_socket_of(const Endpoint& tcp);

// Whether the process that has connected (at the listener: accepted), or that listens (at who has connected), belongs
// to this process's user: its memory holds what that user may read anyway. False for the user that stands for all
// those of other user namespaces. Requires a connected unix socket.
bool is_same_user(int fd) noexcept;

}  // namespace kvd::net
