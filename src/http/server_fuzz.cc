// Fuzzes a live server: an input is what one connection sends, in two pieces. What comes back are answers of this
// server, no more than it gives a connection, and the next connection is served.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/testing/fuzzing.h"
#include "http/server.h"
#include "http/testing/ask.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

namespace {

using kvd::require;
using namespace std::string_view_literals;

constexpr std::array kWords{"GET "sv,
                            "HEAD "sv,
                            "POST "sv,
                            "/metrics"sv,
                            "/healthz?x=1"sv,
                            " HTTP/1.1\r\n"sv,
                            " HTTP/1.0\r\n"sv,
                            "Host: a\r\n"sv,
                            "Connection: close\r\n"sv,
                            "Connection: keep-alive, upgrade\r\n"sv,
                            "Content-Length: "sv,
                            "Transfer-Encoding: chunked\r\n"sv,
                            "Expect: 100-continue\r\n"sv,
                            "Upgrade: websocket\r\n"sv,
                            "\r\n"sv,
                            "\r\n\r\n"sv,
                            "5\r\nabcde\r\n0\r\n\r\n"sv,
                            "18446744073709551616"sv,
                            "X: y\r\n z\r\n"sv,
                            "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"sv,
                            "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"sv};
constexpr std::size_t kAnswersMax = 101;  // a hundred requests, and the word for what came behind them
constexpr int kProbeEach = 64;

kvd::http::HttpServer& server() {
  static const auto live = [] {
    auto started = kvd::http::HttpServer::start("127.0.0.1:0", [](std::string_view path) {
      require(path.find('?') == std::string_view::npos);
      return kvd::http::Response{.status = path == "/metrics" ? 200 : 404, .body = "a 1\n"};
    });
    require(started.has_value());
    return std::move(*started);
  }();
  return *live;
}

// What the server says to one connection; nothing where it neither goes on nor ends it. Each comes from another address
// and is ended by a reset: thousands of them would leave no port.
std::optional<std::string> try_exchange(std::string_view first, std::string_view second) {
  static std::uint32_t connections = 0;
  const int fd = kvd::http::connect_to(server().address(), 0x7F00'0002 + connections++ % 60'000);
  const timeval limit{.tv_sec = 4, .tv_usec = 0};  // less than the server gives a request
  const linger reset{.l_onoff = 1, .l_linger = 0};
  require(::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
  require(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0);
  for (const std::string_view piece : {first, second})
    if (!piece.empty() && ::send(fd, piece.data(), piece.size(), MSG_NOSIGNAL) < 0) break;  // it has had enough
  ::shutdown(fd, SHUT_WR);
  std::string answer;
  std::array<char, 4096> buffer{};
  ssize_t n = 0;
  do {  // libFuzzer's clock interrupts it every few seconds
    n = ::recv(fd, buffer.data(), buffer.size(), 0);
    if (n > 0) answer.append(buffer.data(), static_cast<std::size_t>(n));
  } while (n > 0 || (n < 0 && errno == EINTR));
  const bool waited = n < 0 && errno == EAGAIN;
  require(n == 0 || waited || errno == ECONNRESET);
  ::close(fd);
  return waited ? std::nullopt : std::optional(std::move(answer));
}

// It ends what has ended; on a machine that stands still for seconds, the second time.
std::string exchange(std::string_view first, std::string_view second) {
  for (int tries = 0; tries < 2; ++tries)
    if (auto answer = try_exchange(first, second)) return *answer;
  require(false);
  return {};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  const std::string all = kvd::spell({data, size}, kWords);
  const std::size_t cut = size == 0 ? 0 : all.size() * data[0] / 256;
  const std::string answer = exchange(std::string_view(all).substr(0, cut), std::string_view(all).substr(cut));
  require(answer.empty() || answer.starts_with("HTTP/1.1 "));
  std::size_t answers = 0;
  for (std::size_t at = 0; (at = answer.find("HTTP/1.1 ", at)) != std::string::npos; at += 9) {
    const std::string_view status = std::string_view(answer).substr(at + 9, 4);
    if (status.size() < 4) break;  // cut off by the end of a connection that had more to say
    require(status == "200 " || status == "404 " || status == "400 " || status == "405 ");
    ++answers;
  }
  require(answers <= kAnswersMax);
  static int runs = 0;
  if (++runs % kProbeEach == 0) require(exchange("GET /metrics HTTP/1.0\r\n\r\n", "").ends_with("\r\n\r\na 1\n"));
  return 0;
}
