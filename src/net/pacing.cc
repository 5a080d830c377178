#include "net/pacing.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <string_view>

namespace kvd::net {

void do_not_pace(int socket) noexcept {
  constexpr std::string_view kReno = "reno";
  ::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, kReno.data(), kReno.size());
}

}  // namespace kvd::net
