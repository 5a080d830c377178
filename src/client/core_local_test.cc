// How a client that is told of a port gets at the depot's memory: over the unix socket beside it, in virtual time.
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "client/testing/core_rig.h"
#include "net/local_socket.h"

namespace kvd::client {
namespace {

class CoreLocal : public testing::Test {
 protected:
  // `local`: the depot listens beside its port.
  void start(bool local, RigOptions options = {}) {
    options.tcp = options.shared_memory = true;
    options.connect = false;
    rig = std::make_unique<CoreRig>(options);
    rig->depot->script.shares = true;
    if (local) rig->depot->listen_locally();
    rig->store_records();
    rig->start_core();
  }
  // Where the rig's depot would listen beside its port.
  [[nodiscard]] net::Endpoint beside() const {
    return *net::local_socket_of(*net::resolve(*net::parse_address(rig->depot->address())));
  }
  // Connects if need be and gets everything; how many bytes came through shared memory.
  std::uint64_t shared_bytes() {
    EXPECT_TRUE(rig->wait_connected());
    const std::uint64_t before = rig->state.get.bytes_shared.value();
    rig->poison();
    EXPECT_EQ(rig->finish(rig->get()).code, Code::kOk);
    for (std::size_t key = 0; key < rig->options.keys; ++key) EXPECT_TRUE(rig->landed(0, key));
    return rig->state.get.bytes_shared.value() - before;
  }

  std::unique_ptr<CoreRig> rig;
};

TEST_F(CoreLocal, AClientOfAPortReadsTheDepotsMemory) {
  start(true);
  EXPECT_EQ(shared_bytes(), rig->memory.size());
  EXPECT_EQ(rig->depot->connections, 2U);
  rig->depot->drop_connections();
  rig->loop.settle();
  EXPECT_EQ(shared_bytes(), rig->memory.size()) << "after a loss, too";
}

TEST_F(CoreLocal, WhereNobodyListensBesideThePortBytesComeAtTheFirstAttempt) {
  start(false);
  const Time begun = rig->loop.now();
  EXPECT_EQ(shared_bytes(), 0U);
  EXPECT_EQ(rig->loop.now(), begun);
  EXPECT_EQ(rig->depot->connections, 2U);
}

TEST_F(CoreLocal, WithoutVerificationThePortIsUsed) {
  start(true, {.verify = false});
  EXPECT_EQ(shared_bytes(), 0U);
}

TEST_F(CoreLocal, MemoryThatCannotBeMappedIsDoneWithout) {
  start(true);
  rig->depot->script.no_file = true;
  EXPECT_EQ(shared_bytes(), 0U);
  EXPECT_EQ(rig->depot->connections, 3U) << "one attempt more";
  EXPECT_EQ(rig->state.breaker_opened.value(), 0U);
}

// Somebody else has taken the name, or refuses this user.
TEST_F(CoreLocal, ASocketBesideThePortThatDoesNotGreetIsAvoidedOnce) {
  for (const bool hangs : {false, true}) {
    start(false);
    io::UniqueFd other(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const net::Endpoint name = beside();
    ASSERT_EQ(::bind(other.get(), name.get(), name.bytes), 0);
    ASSERT_EQ(::listen(other.get(), 16), 0);
    rig->loop.settle();
    EXPECT_FALSE(rig->state.connected());
    if (!hangs) io::UniqueFd(::accept(other.get(), nullptr, nullptr)).reset();
    EXPECT_EQ(shared_bytes(), 0U);
    EXPECT_EQ(rig->state.breaker_opened.value(), 0U);
    other.reset();
    rig->depot->listen_locally();
    rig->depot->drop_connections();
    rig->loop.settle();
    EXPECT_EQ(shared_bytes(), rig->memory.size()) << "the port is no habit";
  }
}

// It would read all that is asked for, and answer as it likes.
TEST_F(CoreLocal, ASocketOfAnotherUserIsPassedByAtOnce) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  start(false);
  const io::UniqueFd other(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const net::Endpoint name = beside();
  ASSERT_EQ(::bind(other.get(), name.get(), name.bytes), 0);
  constexpr uid_t kOther = 12345;
  ASSERT_EQ(::seteuid(kOther), 0);
  const int listening = ::listen(other.get(), 16);  // whose process the peers see
  ASSERT_EQ(::seteuid(0), 0);
  ASSERT_EQ(listening, 0);
  const Time begun = rig->loop.now();
  EXPECT_EQ(shared_bytes(), 0U);
  EXPECT_EQ(rig->loop.now(), begun) << "no attempt was lost";
  EXPECT_EQ(rig->depot->connections, 2U);
}

// A depot with credentials does not listen there, so who does would only have the token, and all that is put: a process
// of the same user, which need not be one that may read the token's file.
TEST_F(CoreLocal, AClientWithATokenDoesNotGoNearIt) {
  RigOptions options;
  options.token = [] { return Result<std::string>("kvd_a"); };
  start(false, options);
  rig->depot->script.token = "kvd_a";
  io::UniqueFd squatted(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const net::Endpoint name = beside();
  ASSERT_EQ(::bind(squatted.get(), name.get(), name.bytes), 0);
  ASSERT_EQ(::listen(squatted.get(), 16), 0);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(shared_bytes(), 0U);
    EXPECT_LT(::accept(squatted.get(), nullptr, nullptr), 0) << "somebody came";
    rig->depot->drop_connections();
    rig->loop.settle();
  }
}

TEST_F(CoreLocal, ADepotThatComesBackWithoutIsReachedAtItsPort) {
  start(true);
  EXPECT_EQ(shared_bytes(), rig->memory.size());
  rig->depot->kill();
  rig->depot->restart();
  rig->loop.settle();
  rig->loop.run_for(std::chrono::seconds(2));
  EXPECT_EQ(shared_bytes(), 0U);
}

}  // namespace
}  // namespace kvd::client
