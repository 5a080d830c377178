#include "node/testing/resp_client.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "net/socket_stream.h"

namespace kvd::node {

std::string resp_bulk(std::string_view text) { return fmt::format("${}\r\n{}\r\n", text.size(), text); }

std::string resp_command(const std::vector<std::string>& words) {
  std::string text = fmt::format("*{}\r\n", words.size());
  for (const std::string& word : words) text += resp_bulk(word);
  return text;
}

std::string resp_text(std::size_t bytes, std::uint64_t seed) {
  Random random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random.next());
  return text;
}

RespClient::RespClient(Rig& rig) : rig_(rig) {
  auto [near, far] = net::make_socket_pair();
  EXPECT_TRUE(rig.node->adopt_resp(net::make_socket_stream(std::move(far))).has_value());
  socket_ = io::PrivateFd(std::move(near));
}

void RespClient::send(std::string_view bytes) {
  const bool sent = rig_.until([&] {
    const ssize_t n = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
    receive();
    return bytes.empty() || (n < 0 && errno != EAGAIN);
  });
  EXPECT_TRUE(sent) << "the node does not take all of it";
}

// What is there; true when something was.
bool RespClient::receive() {
  char buffer[65536];
  const ssize_t n = ::recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
  over_ = over_ || n == 0 || (n < 0 && errno != EAGAIN);
  if (n <= 0) return false;
  received_.append(buffer, static_cast<std::size_t>(n));
  return true;
}

std::string RespClient::read(std::size_t bytes) {
  rig_.until([&] {
    while (received_.size() < bytes && receive()) {
    }
    return received_.size() >= bytes || over_;
  });
  const std::string text = received_.substr(0, bytes);
  received_.erase(0, bytes);
  return text;
}

std::string RespClient::call(const std::vector<std::string>& words, std::string_view expected) {
  send(resp_command(words));
  return read(expected.size());
}

std::string RespClient::line() {
  std::string text;
  while (!text.ends_with('\n')) {
    const std::string next = read(1);
    if (next.empty()) break;
    text += next;
  }
  return text;
}

bool RespClient::ended() {
  return rig_.until([&] {
    while (receive()) {
    }
    return over_;
  });
}

}  // namespace kvd::node
