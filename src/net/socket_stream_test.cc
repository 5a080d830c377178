#include "net/socket_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>

#include <gtest/gtest.h>

#include "net/testing/peer.h"

namespace kvd::net {
namespace {

class SocketStreamTest : public testing::Test {
 protected:
  SocketStreamTest() {
    auto [near, far] = make_socket_pair();
    stream_ = make_socket_stream(std::move(near));
    far_ = std::move(far);
    EXPECT_TRUE(stream_->start(*loop_, [this](std::uint32_t ready) { told_ |= ready; }).has_value());
  }
  // Receives into two places of four bytes.
  Result<std::size_t> receive(io::PrivateFd* descriptor = nullptr) {
    const std::array<iovec, 2> places{{{bytes_.data(), 4}, {bytes_.data() + 4, 4}}};
    return stream_->receive(places, descriptor);
  }
  void far_sends(std::size_t bytes) {
    const auto data = make_bytes(bytes, 1);
    ASSERT_EQ(::send(far_.get(), data.data(), data.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }
  std::uint32_t turn() {
    told_ = 0;
    loop_->run_once(Duration::zero());
    return told_;
  }

  std::unique_ptr<io::Loop> loop_ = *io::make_real_loop();
  io::UniqueFd far_;
  std::unique_ptr<io::Stream> stream_;
  std::array<std::byte, 8> bytes_{};
  std::uint32_t told_ = 0;
};

TEST_F(SocketStreamTest, ReceivesWhatHasComeAndSaysWhenNothingHas) {
  EXPECT_EQ(receive().error().code, Code::kBusy);
  far_sends(11);
  EXPECT_EQ(turn(), io::Watch::kRead);
  EXPECT_EQ(receive().value(), 8U);
  EXPECT_EQ(turn(), io::Watch::kRead) << "as long as there is more";
  EXPECT_EQ(receive().value(), 3U);
  EXPECT_EQ(turn(), io::Watch::kNone);
}

TEST_F(SocketStreamTest, SendsAsMuchAsItTakesAndTellsOfRoom) {
  const auto data = make_bytes(1 << 20, 2);
  const std::array<iovec, 1> pieces{{{const_cast<std::byte*>(data.data()), data.size()}}};
  std::size_t sent = 0;
  EXPECT_EQ(stream_->untaken(), 0U);
  Result<std::size_t> took = stream_->send(pieces, -1);
  for (; took; took = stream_->send(pieces, -1)) sent += *took;
  EXPECT_EQ(took.error().code, Code::kBusy);
  ASSERT_TRUE(stream_->want(io::Watch::kWrite).has_value());
  EXPECT_EQ(turn(), io::Watch::kNone);
  std::vector<std::byte> got(sent);
  EXPECT_GE(stream_->untaken(), sent) << "with the kernel's bookkeeping";
  EXPECT_EQ(::recv(far_.get(), got.data(), got.size(), MSG_WAITALL), static_cast<ssize_t>(sent));
  EXPECT_EQ(stream_->untaken(), 0U);
  EXPECT_EQ(turn(), io::Watch::kWrite);
}

TEST_F(SocketStreamTest, ThePeersEndIsZeroBytesAndItsAbsenceAnError) {
  stream_->end_sending();
  EXPECT_EQ(::recv(far_.get(), bytes_.data(), bytes_.size(), 0), 0);
  ASSERT_EQ(::shutdown(far_.get(), SHUT_WR), 0);
  EXPECT_EQ(receive().value(), 0U);
  far_.reset();
  const std::array<iovec, 1> pieces{{{bytes_.data(), bytes_.size()}}};
  EXPECT_EQ(stream_->send(pieces, -1).error().code, Code::kUnavailable);
}

TEST_F(SocketStreamTest, AClosedStreamIsSilentAndNothingWorksAnyMore) {
  far_sends(3);
  stream_->close();
  stream_->close();
  EXPECT_EQ(turn(), io::Watch::kNone);
  EXPECT_TRUE(stream_->want(io::Watch::kWrite).has_value());
  EXPECT_EQ(receive().error().code, Code::kIo);
  EXPECT_FALSE(stream_->is_local());
  EXPECT_EQ(stream_->fd(), -1);
}

TEST_F(SocketStreamTest, DescriptorsComeOnlyToThoseWhoAsk) {
  SocketStream far(std::move(far_));
  const std::array<iovec, 1> pieces{{{bytes_.data(), 1}}};
  const io::UniqueFd sent(::dup(0));
  io::PrivateFd came;
  EXPECT_EQ(far.send(pieces, sent.get()).value(), 1U);
  EXPECT_EQ(receive().value(), 1U);
  EXPECT_EQ(far.send(pieces, sent.get()).value(), 1U);
  EXPECT_EQ(receive(&came).value(), 1U);
  EXPECT_TRUE(came.ok());
  EXPECT_TRUE(stream_->is_local());
}

// As a kernel's own choice may pace; on both ends, as both send bodies.
TEST_F(SocketStreamTest, LoopbackIsNotPaced) {
  auto [near, far] = make_tcp_pair();
  const int connected = near.get(), accepted = far.get();
  const auto one = make_socket_stream(std::move(near)), other = make_socket_stream(std::move(far));
  ASSERT_TRUE(one->start(*loop_, [](std::uint32_t) {}).has_value());
  ASSERT_TRUE(other->start(*loop_, [](std::uint32_t) {}).has_value());
  for (const int socket : {connected, accepted}) {
    std::array<char, 16> name{};
    socklen_t bytes = name.size();
    ASSERT_EQ(::getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), &bytes), 0);
    EXPECT_STREQ(name.data(), "reno");
  }
}

TEST_F(SocketStreamTest, ATcpSocketHasAReadMarkAndIsKeptAlive) {
  auto [plain, near] = make_tcp_pair();
  SocketStream tcp(std::move(near));
  int told = 0;
  ASSERT_TRUE(tcp.start(*loop_, [&](std::uint32_t) { ++told; }).has_value());
  EXPECT_TRUE(tcp.set_read_mark(10));
  ASSERT_EQ(::send(plain.get(), bytes_.data(), 5, MSG_NOSIGNAL), 5);
  loop_->run_once(Duration::zero());
  EXPECT_EQ(told, 0);
  ASSERT_EQ(::send(plain.get(), bytes_.data(), 5, MSG_NOSIGNAL), 5);
  EXPECT_TRUE(run_until(*loop_, [&] { return told > 0; }));
  const auto option = [&](int level, int name) {
    int value = 0;
    socklen_t size = sizeof value;
    EXPECT_EQ(::getsockopt(tcp.fd(), level, name, &value, &size), 0);
    return value;
  };
  EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_LE(option(IPPROTO_TCP, TCP_KEEPIDLE) + option(IPPROTO_TCP, TCP_KEEPINTVL) * option(IPPROTO_TCP, TCP_KEEPCNT),
            60);
}

TEST_F(SocketStreamTest, AUnixSocketHasNoReadMark) { EXPECT_FALSE(stream_->set_read_mark(100)); }

}  // namespace
}  // namespace kvd::net
