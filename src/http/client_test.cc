#include "http/client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <thread>

#include <gtest/gtest.h>

#include "http/server.h"

namespace kvd::http {
namespace {

using std::chrono::seconds;

// A port of loopback that the system chooses.
std::string listen_on(int socket) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  EXPECT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  EXPECT_EQ(::listen(socket, 1), 0);
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&at), &length), 0);
  return "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
}

TEST(HttpClient, GetsWhatAServerAnswers) {
  const auto server = *HttpServer::start("127.0.0.1:0", [](std::string_view path) {
    if (path == "/metrics") return Response{.content_type = "text/x", .body = std::string(100'000, 'a')};
    return Response{.status = 503, .body = "recovering\n"};
  });
  const auto metrics = get(server->address(), "/metrics", seconds(10));
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->status, 200);
  EXPECT_EQ(metrics->content_type, "text/x");
  EXPECT_EQ(metrics->body, std::string(100'000, 'a'));
  const auto health = get(server->address(), "/healthz", seconds(10));
  ASSERT_TRUE(health);
  EXPECT_EQ(health->status, 503);
  EXPECT_EQ(health->body, "recovering\n");
}

TEST(HttpClient, RefusesAnAnswerThatIsTooLong) {
  const auto server = *HttpServer::start(
      "127.0.0.1:0", [](std::string_view) { return Response{.body = std::string(kAnswerBytesMax + 1, 'a')}; });
  const auto answer = get(server->address(), "/", seconds(10));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kIo);
}

TEST(HttpClient, NamesWhatIsWrong) {
  for (const char* nonsense : {"", "7071", "localhost", "example.com:80", "127.0.0.1:70710"}) {
    const auto answer = get(nonsense, "/", seconds(1));
    ASSERT_FALSE(answer) << nonsense;
    EXPECT_EQ(answer.error().code, Code::kInvalid) << nonsense;
  }
  std::string address;
  {
    const auto server = *HttpServer::start("127.0.0.1:0", [](std::string_view) { return Response{}; });
    address = server->address();
  }
  const auto refused = get(address, "/", seconds(10));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kIo);
  EXPECT_EQ(refused.error().sys_errno, ECONNREFUSED);
}

// Of a chunk whose header does not end, nothing is a body.
TEST(HttpClient, RefusesAnAnswerThatNeverBegins) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const std::string address = listen_on(listener);
  std::thread server([listener] {
    const int fd = ::accept(listener, nullptr, nullptr);
    const std::string_view head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;";
    const std::string rest(1 << 20, 'a');
    ssize_t sent = ::send(fd, head.data(), head.size(), MSG_NOSIGNAL);
    for (int i = 0; i < 64 && sent > 0; ++i) sent = ::send(fd, rest.data(), rest.size(), MSG_NOSIGNAL);
    EXPECT_LT(sent, 0) << "all of it was taken";
    ::close(fd);
  });
  const auto answer = get(address, "/", seconds(10));
  server.join();
  ::close(listener);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kIo);
}

// The system takes the connection, and nobody ever answers.
TEST(HttpClient, WaitsNoLongerThanItMay) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto answer = get(listen_on(listener), "/", Millis(50));
  ::close(listener);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kTimeout);
}

}  // namespace
}  // namespace kvd::http
