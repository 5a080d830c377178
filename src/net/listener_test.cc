#include "net/listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "net/dialer.h"
#include "net/testing/peer.h"

namespace kvd::net {
namespace {

class ListenerTest : public testing::Test {
 protected:
  ListenerTest() {
    std::string pattern = testing::TempDir() + "kvd_listener_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~ListenerTest() override { std::filesystem::remove_all(folder_); }

  Address unix_address(const std::string& name = "sock") {
    return {.kind = Address::Kind::kUnix, .host = {}, .port = 0, .path = folder_ + "/" + name};
  }
  static Address tcp_address() { return *parse_address("tcp://127.0.0.1:0"); }

  // Connects to `address`; the result, whatever it is.
  Result<std::unique_ptr<io::Stream>> dial(const Address& address) {
    std::optional<Result<std::unique_ptr<io::Stream>>> result;
    SocketDialer dialer(*loop_);
    dialer.connect(*resolve(address), loop_->now() + std::chrono::seconds(5), [&](auto r) { result = std::move(r); });
    EXPECT_FALSE(result.has_value());  // never from inside connect()
    EXPECT_TRUE(run_until(*loop_, [&] { return result.has_value(); }));
    return std::move(*result);
  }
  Code bind_error(const Address& address) {
    const auto listener = Listener::bind(*loop_, address);
    return listener ? Code::kOk : listener.error().code;
  }

  std::unique_ptr<io::Loop> loop_ = *io::make_real_loop();
  std::string folder_;
};

TEST_F(ListenerTest, AcceptsOnAPortThatTheSystemChose) {
  auto listener = *Listener::bind(*loop_, tcp_address());
  EXPECT_NE(listener->address().port, 0);
  EXPECT_EQ(dial(listener->address()).error().code, Code::kUnavailable);  // bound, but refused until start()
  int accepted = 0;
  ASSERT_TRUE(listener->start([&](io::UniqueFd socket) { accepted += socket.ok(); }).has_value());
  const auto socket = dial(listener->address());
  ASSERT_TRUE(socket.has_value());
  EXPECT_TRUE(run_until(*loop_, [&] { return accepted == 1; }));
}

// Whose sessions cost something: operations of others come between them.
TEST_F(ListenerTest, AcceptsAFewInATurn) {
  auto listener = *Listener::bind(*loop_, unix_address());
  std::vector<io::UniqueFd> accepted, dialed;
  ASSERT_TRUE(listener->start([&](io::UniqueFd socket) { accepted.push_back(std::move(socket)); }).has_value());
  const Endpoint endpoint = *resolve(unix_address());
  for (int i = 0; i < 16; ++i) {
    dialed.emplace_back(::socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(::connect(dialed.back().get(), endpoint.get(), endpoint.bytes), 0);
  }
  std::size_t turns = 0, most = 0;
  for (; accepted.size() < 16 && turns < 100; ++turns) {
    const std::size_t before = accepted.size();
    loop_->run_once(std::chrono::milliseconds(100));
    most = std::max(most, accepted.size() - before);
  }
  EXPECT_EQ(accepted.size(), 16U);
  EXPECT_LE(most, 4U);
}

// From its first moment: a change behind it would leave the timers of a control that paces.
TEST_F(ListenerTest, ConnectionsOverLoopbackArePacedAtNoTime) {
  const auto control_of = [](int socket) {
    std::array<char, 16> name{};
    socklen_t bytes = name.size();
    return ::getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), &bytes) == 0 ? name.data() : std::string();
  };
  auto listener = *Listener::bind(*loop_, tcp_address());
  io::UniqueFd accepted;
  ASSERT_TRUE(listener->start([&](io::UniqueFd socket) { accepted = std::move(socket); }).has_value());
  const auto dialed = dial(listener->address());
  ASSERT_TRUE(dialed.has_value());
  ASSERT_TRUE(run_until(*loop_, [&] { return accepted.ok(); }));
  EXPECT_EQ(control_of((*dialed)->fd()), "reno");  // not started yet
  EXPECT_EQ(control_of(accepted.get()), "reno");
}

TEST_F(ListenerTest, APortInUseIsBusy) {
  auto listener = *Listener::bind(*loop_, tcp_address());
  ASSERT_TRUE(listener->start([](io::UniqueFd) {}).has_value());
  EXPECT_EQ(bind_error(listener->address()), Code::kBusy);
}

TEST_F(ListenerTest, AddressesThatOtherMachinesReachAreRefused) {
  EXPECT_EQ(bind_error(*parse_address("tcp://0.0.0.0:0")), Code::kInvalid);
  EXPECT_EQ(bind_error(*parse_address("tcp://192.0.2.1:0")), Code::kInvalid);
}

TEST_F(ListenerTest, AUnixSocketIsItsOwnersAlone) {
  auto listener = *Listener::bind(*loop_, unix_address());
  struct stat status{};
  ASSERT_EQ(::stat(unix_address().path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  int accepted = 0;
  ASSERT_TRUE(listener->start([&](io::UniqueFd socket) { accepted += socket.ok(); }).has_value());
  ASSERT_TRUE(dial(unix_address()).has_value());
  EXPECT_TRUE(run_until(*loop_, [&] { return accepted == 1; }));
  EXPECT_EQ(bind_error(unix_address()), Code::kBusy);
  listener.reset();
  EXPECT_FALSE(std::filesystem::exists(unix_address().path));
}

// Its owner recovers its store between the two, and a second one must not take the name meanwhile.
TEST_F(ListenerTest, AUnixSocketIsTakenFromBindOnAndNotFromStartOn) {
  auto listener = *Listener::bind(*loop_, unix_address());
  EXPECT_EQ(bind_error(unix_address()), Code::kBusy);
  int accepted = 0;
  ASSERT_TRUE(listener->start([&](io::UniqueFd socket) { accepted += socket.ok(); }).has_value());
  ASSERT_TRUE(dial(unix_address()).has_value()) << "the name is still its own";
  listener.reset();
  EXPECT_EQ(bind_error(unix_address()), Code::kOk);
}

TEST_F(ListenerTest, AStaleSocketFileIsReplacedAndAnotherFileIsNot) {
  {
    const io::UniqueFd crashed(::socket(AF_UNIX, SOCK_STREAM, 0));
    const Endpoint endpoint = *resolve(unix_address());
    ASSERT_EQ(::bind(crashed.get(), endpoint.get(), endpoint.bytes), 0);
  }
  EXPECT_TRUE(std::filesystem::exists(unix_address().path));
  EXPECT_EQ(bind_error(unix_address()), Code::kOk);
  std::ofstream(folder_ + "/file") << "precious";
  EXPECT_EQ(bind_error(unix_address("file")), Code::kInvalid);
  EXPECT_EQ(std::filesystem::file_size(folder_ + "/file"), 8U);
  EXPECT_EQ(bind_error(unix_address("no/such/folder")), Code::kIo);
}

TEST_F(ListenerTest, DialingNobodyIsUnavailable) { EXPECT_EQ(dial(unix_address()).error().code, Code::kUnavailable); }

TEST_F(ListenerTest, ADialerThatIsDestroyedOrCancelledSaysNothing) {
  auto listener = *Listener::bind(*loop_, tcp_address());
  ASSERT_TRUE(listener->start([](io::UniqueFd) {}).has_value());
  bool told = false;
  {
    SocketDialer dialer(*loop_);
    dialer.connect(*resolve(listener->address()), kNever, [&](const auto&) { told = true; });
    EXPECT_TRUE(dialer.busy());
  }
  SocketDialer dialer(*loop_);
  dialer.connect(*resolve(listener->address()), kNever, [&](const auto&) { told = true; });
  dialer.cancel();
  EXPECT_FALSE(dialer.busy());
  ASSERT_TRUE(dial(listener->address()).has_value());
  EXPECT_FALSE(told);
}

TEST_F(ListenerTest, ADialIsGivenUpAtItsDeadline) {
  // A listener with a full backlog that nobody accepts from: connecting to it hangs.
  const io::UniqueFd full(::socket(AF_INET, SOCK_STREAM, 0));
  const Endpoint any = *resolve(tcp_address());
  ASSERT_EQ(::bind(full.get(), any.get(), any.bytes), 0);
  ASSERT_EQ(::listen(full.get(), 0), 0);
  Endpoint endpoint;
  endpoint.bytes = sizeof endpoint.storage;
  ASSERT_EQ(::getsockname(full.get(), reinterpret_cast<sockaddr*>(&endpoint.storage), &endpoint.bytes), 0);
  std::vector<std::unique_ptr<SocketDialer>> dialers;
  int timeouts = 0;
  for (int i = 0; i < 4; ++i) {
    dialers.push_back(std::make_unique<SocketDialer>(*loop_));
    dialers.back()->connect(endpoint, loop_->now() + std::chrono::milliseconds(10),
                            [&](const auto& result) { timeouts += !result && result.error().code == Code::kTimeout; });
  }
  EXPECT_TRUE(run_until(*loop_, [&] { return timeouts >= 2; }));
}

}  // namespace
}  // namespace kvd::net
