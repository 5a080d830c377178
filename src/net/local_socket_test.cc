#include "net/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <string>

#include <gtest/gtest.h>

#include "net/dialer.h"
#include "net/listener.h"
#include "net/testing/peer.h"

namespace kvd::net {
namespace {

std::optional<Endpoint> beside(const std::string& address) {
  return local_socket_of(*resolve(*parse_address(address)));
}

std::string name_of(const Endpoint& endpoint) {
  const auto& un = reinterpret_cast<const sockaddr_un&>(endpoint.storage);
  return {std::begin(un.sun_path), endpoint.bytes - offsetof(sockaddr_un, sun_path)};
}

TEST(LocalSocket, StandsBesideLoopbackPortsOnly) {
  using namespace std::string_literals;
  EXPECT_EQ(name_of(*beside("tcp://127.0.0.1:7070")), "\0kvdepot/127.0.0.1/7070"s);
  EXPECT_EQ(name_of(*beside("tcp://localhost:7070")), "\0kvdepot/127.0.0.1/7070"s);
  EXPECT_EQ(name_of(*beside("tcp://[::1]:65535")), "\0kvdepot/::1/65535"s);
  EXPECT_FALSE(beside("tcp://127.0.0.1:0"));
  EXPECT_FALSE(beside("tcp://192.0.2.1:7070"));
  EXPECT_FALSE(beside("tcp://[2001:db8::1]:7070"));
  EXPECT_FALSE(beside("unix:///run/kvdepot.sock"));
}

class LocalSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    local_ = *port_->bind_local_socket(*loop_);
    ASSERT_TRUE(local_->start([this](io::UniqueFd socket) { accepted_ = std::move(socket); }).has_value());
  }
  // A socket that has connected, as the effective user of this moment.
  [[nodiscard]] io::UniqueFd connect() const {
    const Endpoint endpoint = *beside(port_->address().text());
    io::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), endpoint.get(), endpoint.bytes), 0);
    return socket;
  }

  std::unique_ptr<io::Loop> loop_ = *io::make_real_loop();
  std::unique_ptr<Listener> port_ = *Listener::bind(*loop_, *parse_address("tcp://127.0.0.1:0"));
  std::unique_ptr<Listener> local_;
  io::UniqueFd accepted_;
};

TEST_F(LocalSocketTest, TakesClientsOfTheSameUser) {
  EXPECT_EQ(local_->address().text(), port_->address().text());
  EXPECT_TRUE(local_->is_unix());
  EXPECT_FALSE(port_->is_unix());
  const io::UniqueFd client = connect();
  ASSERT_TRUE(run_until(*loop_, [&] { return accepted_.ok(); }));
  EXPECT_TRUE(is_same_user(client.get()));
  EXPECT_TRUE(is_same_user(accepted_.get()));
}

TEST_F(LocalSocketTest, ClosesThoseOfOthers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  constexpr uid_t kOther = 12345;
  ASSERT_EQ(::seteuid(kOther), 0);
  const io::UniqueFd client = connect();
  EXPECT_FALSE(is_same_user(client.get())) << "root listens";
  ASSERT_EQ(::seteuid(0), 0);
  char byte = 0;
  EXPECT_TRUE(run_until(*loop_, [&] { return ::recv(client.get(), &byte, 1, MSG_DONTWAIT) == 0; }));
  EXPECT_FALSE(accepted_.ok());
}

// Two processes that both are the user of whom nothing is known need not be the same.
TEST_F(LocalSocketTest, UsersWithoutANameAreNotTheSame) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  constexpr uid_t kUnknown = 65534;
  ASSERT_EQ(::seteuid(kUnknown), 0);
  local_.reset();
  local_ = *port_->bind_local_socket(*loop_);
  const Status started = local_->start([this](io::UniqueFd socket) { accepted_ = std::move(socket); });
  const io::UniqueFd client = connect();
  EXPECT_FALSE(is_same_user(client.get()));
  char byte = 0;
  EXPECT_TRUE(run_until(*loop_, [&] { return ::recv(client.get(), &byte, 1, MSG_DONTWAIT) == 0; }));
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_TRUE(started.has_value());
  EXPECT_FALSE(accepted_.ok());
}

TEST_F(LocalSocketTest, ANameIsTakenOnceAndFreeAfterwards) {
  EXPECT_EQ(port_->bind_local_socket(*loop_).error().code, Code::kBusy);
  local_.reset();
  EXPECT_TRUE(port_->bind_local_socket(*loop_).has_value());
}

}  // namespace
}  // namespace kvd::net
