#include "http/server.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "http/testing/ask.h"

namespace kvd::http {
namespace {

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    server_ = *HttpServer::start("127.0.0.1:0", [](std::string_view path) {
      if (path == "/healthz") return Response{.status = 503, .body = "recovering\n"};
      if (path == "/nice") return Response{.body = std::to_string(::getpriority(PRIO_PROCESS, 0))};
      if (path == "/metrics") return Response{.content_type = "text/plain; version=0.0.4", .body = "a 1\n"};
      return Response{.status = 404, .body = "not here\n"};
    });
  }

  int connect() { return connect_to(server_->address()); }
  std::string ask(std::string_view request) { return http::ask(server_->address(), request); }

  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersByPathWithoutTheQuery) {
  const std::string answer = ask("GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_NE(answer.find("Content-Type: text/plain; version=0.0.4\r\n"), std::string::npos);
  EXPECT_TRUE(answer.ends_with("\r\n\r\na 1\n"));
  EXPECT_TRUE(ask("GET /healthz HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 503 "));
  EXPECT_TRUE(ask("GET /other HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404 "));
}

TEST_F(HttpServerTest, LeavesTheCoresToOthers) {
  const int own = ::getpriority(PRIO_PROCESS, 0);
  EXPECT_TRUE(ask("GET /nice HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n" + std::to_string(std::min(own + 10, 19))));
}

TEST_F(HttpServerTest, KeepsAConnectionOpen) {
  const std::string two =
      ask("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\nGET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  const std::size_t first = two.find("HTTP/1.1 200");
  EXPECT_NE(two.find("HTTP/1.1 200", first + 1), std::string::npos);
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  const std::string answer = ask("HEAD /metrics HTTP/1.0\r\n\r\n");
  EXPECT_NE(answer.find("Content-Length: 4\r\n"), std::string::npos);
  EXPECT_TRUE(answer.ends_with("\r\n\r\n"));
}

TEST_F(HttpServerTest, OtherMethodsNonsenseAndTooMuchAreRefused) {
  EXPECT_TRUE(ask("POST /metrics HTTP/1.0\r\nContent-Length: 0\r\n\r\n").starts_with("HTTP/1.1 405 "));
  EXPECT_TRUE(ask("KVD1\x01\x02\r\n\r\n").starts_with("HTTP/1.1 400 "));
  EXPECT_TRUE(ask("GET / HTTP/1.1\r\nX: " + std::string(9000, 'x') + "\r\n\r\n").starts_with("HTTP/1.1 400 "));
  EXPECT_TRUE(ask("GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde").starts_with("HTTP/1.1 400 "));
}

TEST_F(HttpServerTest, ConnectionsAreBounded) {
  std::vector<int> held;
  for (int i = 0; i < 64; ++i) held.push_back(connect());
  // Who asks something is answered, and the one that has said nothing for longest goes.
  EXPECT_TRUE(ask("GET /metrics HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));
  char byte = 0;
  EXPECT_EQ(::recv(held[0], &byte, 1, 0), 0);
  EXPECT_EQ(::recv(held[1], &byte, 1, MSG_DONTWAIT), -1);
  for (const int fd : held) ::close(fd);
}

TEST_F(HttpServerTest, PeersThatNeverFinishTheirHeaderKeepNobodyOut) {
  std::vector<int> held;
  for (int i = 0; i < 300; ++i) {
    held.push_back(connect());
    EXPECT_EQ(::send(held.back(), "GET / HT", 8, MSG_NOSIGNAL), 8);
    if (i % 50 != 49) continue;
    EXPECT_TRUE(ask("GET /metrics HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));
  }
  for (const int fd : held) ::close(fd);
}

TEST_F(HttpServerTest, StopsWithConnectionsOpen) {
  const int fd = connect();
  server_.reset();
  ::close(fd);
}

TEST(HttpServer, RefusesAddresses) {
  const auto code = [](const char* address) {
    const auto server = HttpServer::start(address, [](std::string_view) { return Response{}; });
    return server ? Code::kOk : server.error().code;
  };
  EXPECT_EQ(code("7071"), Code::kInvalid);
  EXPECT_EQ(code("127.0.0.1:"), Code::kInvalid);
  EXPECT_EQ(code("127.0.0.1:70000"), Code::kInvalid);
  EXPECT_EQ(code("host.example:80"), Code::kInvalid);
  EXPECT_EQ(code("0.0.0.0:0"), Code::kInvalid);
  EXPECT_EQ(code("localhost:0"), Code::kOk);
  const auto first = HttpServer::start("127.0.0.1:0", [](std::string_view) { return Response{}; });
  EXPECT_EQ(code((*first)->address().c_str()), Code::kBusy);
}

}  // namespace
}  // namespace kvd::http
