// File descriptors that come with messages, and connections that hold.
#include "net/descriptor.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "net/socket_stream.h"
#include "net/testing/peer.h"

namespace kvd::net {
namespace {

io::UniqueFd make_file(const char* text) {
  io::UniqueFd file(::memfd_create("descriptor-test", MFD_CLOEXEC));
  EXPECT_EQ(::write(file.get(), text, std::strlen(text)), static_cast<ssize_t>(std::strlen(text)));
  return file;
}

std::string text_of(int fd) {
  char text[16]{};
  const ssize_t got = ::pread(fd, text, sizeof text, 0);
  return got < 0 ? "" : std::string(text, static_cast<std::size_t>(got));
}

class DescriptorTest : public testing::Test {
 protected:
  DescriptorTest() : loop(*io::make_real_loop()) {}
  void connect(const ConnectionOptions& options) {
    auto [a, b] = make_socket_pair();
    near = std::make_unique<Peer>(*loop, std::move(a));
    far = std::make_unique<Peer>(*loop, std::move(b), options);
  }
  void send(std::uint64_t id, int descriptor = -1) {
    near->connection->send(
        {.head = wire::frame({.request_id = id}, wire::Ping{}), .body = {}, .on_done = {}, .descriptor = descriptor});
  }
  std::unique_ptr<io::Loop> loop;
  std::unique_ptr<Peer> near, far;
};

TEST_F(DescriptorTest, ComesWithItsMessageAmongOthers) {
  connect({.takes_descriptors = true});
  const io::UniqueFd file = make_file("pool");
  send(1);
  send(2, file.get());
  send(3);
  near->connection->flush();
  std::vector<bool> there;
  far->on_request = [&] { there.push_back(far->connection->take_descriptor().ok()); };
  ASSERT_TRUE(run_until(*loop, [&] { return far->received.size() == 3; }));
  EXPECT_EQ(there[0] + there[1], 1) << "with the bytes of the second message, which may lie behind those of the first";
  EXPECT_FALSE(there[2]);
}

TEST_F(DescriptorTest, IsTheSendersFileAndClosesOnExec) {
  connect({.takes_descriptors = true});
  const io::UniqueFd file = make_file("pool");
  send(1, file.get());
  near->connection->flush();
  ASSERT_TRUE(run_until(*loop, [&] { return far->received.size() == 1; }));
  const io::PrivateFd taken = far->connection->take_descriptor();
  EXPECT_EQ(text_of(taken.get()), "pool");
  EXPECT_EQ(::fcntl(taken.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_FALSE(far->connection->take_descriptor().ok());
}

TEST_F(DescriptorTest, OfSeveralTheLastStays) {
  connect({.takes_descriptors = true});
  const io::UniqueFd one = make_file("one");
  const io::UniqueFd two = make_file("two");
  send(1, one.get());
  send(2, two.get());
  near->connection->flush();
  ASSERT_TRUE(run_until(*loop, [&] { return far->received.size() == 2; }));
  EXPECT_EQ(text_of(far->connection->take_descriptor().get()), "two");
}

TEST_F(DescriptorTest, IsDroppedByWhoDoesNotExpectIt) {
  connect({});
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const io::UniqueFd out(ends[0]);
  io::UniqueFd in(ends[1]);
  send(1, in.get());
  near->connection->flush();
  ASSERT_TRUE(run_until(*loop, [&] { return far->received.size() == 1; }));
  EXPECT_FALSE(far->connection->take_descriptor().ok());
  in.reset();
  char byte = 0;
  EXPECT_EQ(::read(out.get(), &byte, 1), 0) << "nobody else has the writing end";
}

// How many descriptors this process has.
std::size_t open_files() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

TEST_F(DescriptorTest, OfTwoInOneMessageOneIsClosed) {
  auto [a, b] = make_socket_pair();
  const io::UniqueFd one = make_file("one");
  const io::UniqueFd two = make_file("two");
  const int both[] = {one.get(), two.get()};
  DescriptorSpace space;  // alignment gives room for two
  static_assert(sizeof space.bytes >= CMSG_LEN(sizeof both));
  std::byte byte{};
  iovec piece{&byte, 1};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  attach_descriptor(message, space, both[0]);
  CMSG_FIRSTHDR(&message)->cmsg_len = CMSG_LEN(sizeof both);
  std::memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), both, sizeof both);
  ASSERT_EQ(::sendmsg(a.get(), &message, 0), 1);
  const std::size_t before = open_files();
  expect_descriptor(message, space);
  ASSERT_EQ(::recvmsg(b.get(), &message, MSG_CMSG_CLOEXEC), 1);
  const io::UniqueFd taken = take_descriptor(message);
  EXPECT_EQ(text_of(taken.get()), "two");
  EXPECT_EQ(open_files(), before + 1);
}

TEST_F(DescriptorTest, LocalIsAUnixSocket) {
  connect({});
  EXPECT_TRUE(near->connection->is_local());
  io::UniqueFd tcp(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  NetCounters counters;
  const Connection connection(*loop, *near, counters, make_socket_stream(std::move(tcp)), {});
  EXPECT_FALSE(connection.is_local());
}

TEST_F(DescriptorTest, AHeldConnectionTakesNothingUntilItGoesOn) {
  connect({});
  far->on_request = [&] {
    if (far->received.empty()) far->connection->hold();
  };
  for (std::uint64_t id = 1; id <= 3; ++id) send(id);
  near->connection->flush();
  ASSERT_TRUE(run_until(*loop, [&] { return far->received.size() == 1; }));
  send(4);
  near->connection->flush();
  for (int turn = 0; turn < 10; ++turn) loop->run_once(Millis(1));
  EXPECT_EQ(far->received.size(), 1U) << "neither what had arrived nor what came later";
  far->connection->resume();
  EXPECT_EQ(far->received.size(), 1U) << "from the loop, not from inside";
  EXPECT_TRUE(run_until(*loop, [&] { return far->received.size() == 4; }));
}

TEST_F(DescriptorTest, AHeldConnectionSendsAndIsNotStalled) {
  connect({.stall_limit = Millis(20)});
  far->on_request = [&] { far->connection->hold(); };
  for (std::uint64_t id = 1; id <= 2; ++id) send(id);
  near->connection->flush();
  ASSERT_TRUE(run_until(*loop, [&] { return far->received.size() == 1; }));
  far->send(wire::frame({.request_id = 9}, wire::Ping{}));
  EXPECT_TRUE(run_until(*loop, [&] { return near->received.size() == 1; }));
  const Time later = loop->now() + Millis(80);
  EXPECT_TRUE(run_until(*loop, [&] { return loop->now() >= later; }));
  EXPECT_FALSE(far->closed.has_value());
}

}  // namespace
}  // namespace kvd::net
