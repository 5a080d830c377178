#include "http/testing/ask.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>

#include <gtest/gtest.h>

namespace kvd::http {

int connect_to(const std::string& address, std::uint32_t from) {
  std::uint16_t port = 0;
  std::from_chars(address.data() + address.rfind(':') + 1, address.data() + address.size(), port);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in source{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(from)}, .sin_zero = {}};
  const int late = 1;  // the port is chosen when it connects
  EXPECT_EQ(::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &late, sizeof late), 0);
  EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&source), sizeof source), 0);
  EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  return fd;
}

std::string ask(const std::string& address, std::string_view request) {
  const int fd = connect_to(address);
  EXPECT_EQ(::send(fd, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::recv(fd, buffer, sizeof buffer, 0)) > 0;)
    answer.append(buffer, static_cast<std::size_t>(n));
  ::close(fd);
  return answer;
}

}  // namespace kvd::http
