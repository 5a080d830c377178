// Fuzzes the reader of answers: an input is what a server says to one request, before it closes. What is taken for an
// answer is one, and no longer than a client takes.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "base/testing/fuzzing.h"
#include "http/client.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

namespace {

using kvd::require;
using namespace std::string_view_literals;

constexpr std::array kWords{"HTTP/1.1 200 OK\r\n"sv,
                            "HTTP/1.0 503 Busy\r\n"sv,
                            "HTTP/1.1 100 Continue\r\n\r\n"sv,
                            "HTTP/1.1 204 No Content\r\n"sv,
                            "Content-Length: "sv,
                            "Content-Length: 5\r\n"sv,
                            "Content-Type: text/plain\r\n"sv,
                            "Transfer-Encoding: chunked\r\n"sv,
                            "Trailer: X\r\n"sv,
                            "Connection: keep-alive\r\n"sv,
                            "\r\n"sv,
                            "\r\n\r\n"sv,
                            "5\r\nabcde\r\n"sv,
                            "0\r\n\r\n"sv,
                            "5;x=\"y\"\r\nabcde\r\n"sv,
                            "fffffffffffffff0\r\n"sv,
                            "18446744073709551615\r\n"sv,
                            "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"sv};

// Takes one connection after the other, as the thread of the fuzzer says.
class Peer {
 public:
  Peer() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof here;
    auto* const address = reinterpret_cast<sockaddr*>(&here);
    require(::bind(listener_, address, bytes) == 0 && ::listen(listener_, 8) == 0);
    require(::getsockname(listener_, address, &bytes) == 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(here.sin_port));
  }
  [[nodiscard]] const std::string& address() const { return address_; }
  // Says `text` once a request has come, in two pieces, and closes: by a reset, if `rudely`.
  void answer(std::string_view text, std::size_t cut, bool rudely) const {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    require(fd >= 0);
    std::array<char, 4096> request{};
    std::string got;
    for (ssize_t n = 0; !got.ends_with("\r\n\r\n") && (n = ::recv(fd, request.data(), request.size(), 0)) > 0;)
      got.append(request.data(), static_cast<std::size_t>(n));
    require(got.starts_with("GET /metrics HTTP/1.1\r\n"));
    for (const std::string_view piece : {text.substr(0, cut), text.substr(cut)})
      if (!piece.empty() && ::send(fd, piece.data(), piece.size(), MSG_NOSIGNAL) < 0) break;
    const linger reset{.l_onoff = 1, .l_linger = 0};
    if (rudely) ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    ::close(fd);
  }

 private:
  int listener_;
  std::string address_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  static const Peer peer;
  const std::string text = kvd::spell({data, size}, kWords);
  const std::size_t cut = size == 0 ? 0 : text.size() * data[0] / 256;
  std::thread server([&] { peer.answer(text, cut, size % 8 == 0); });
  const auto answer = kvd::http::get(peer.address(), "/metrics", std::chrono::seconds(4));
  server.join();
  if (!answer) {
    require(answer.error().code == kvd::Code::kIo);  // never a timeout: the peer has closed
  } else {
    require(answer->body.size() <= kvd::http::kAnswerBytesMax);
  }
  return 0;
}
