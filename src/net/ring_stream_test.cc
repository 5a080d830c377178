#include "net/ring_stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "net/socket_stream.h"
#include "net/testing/peer.h"
#include "wire/message.h"

namespace kvd::net {
namespace {

// A client's end and a depot's, each a connection, on one loop or on two.
class RingStreamTest : public testing::Test {
 protected:
  void open(std::size_t ring_bytes = RingMemory::kRingBytesMin, const ConnectionOptions& options = {}) {
    auto [near, far] = make_socket_pair();
    near_fd = near.get();
    auto near_stream = std::make_unique<RingStream>(make_socket_stream(std::move(near)));
    auto far_stream = std::make_unique<RingStream>(make_socket_stream(std::move(far)));
    near_ring = near_stream.get();
    far_ring = far_stream.get();
    memory = std::move(*RingMemory::create(ring_bytes));
    client = std::make_unique<Peer>(*loop, std::move(near_stream), options);
    depot = std::make_unique<Peer>(*far_loop, std::move(far_stream), options);
    control = map();
    near_ring->use(map(), RingStream::Side::kClient);
    far_ring->use(map(), RingStream::Side::kDepot);
  }
  std::unique_ptr<RingMemory> map() {
    auto mapped = RingMemory::map(io::PrivateFd(io::UniqueFd(::dup(memory->fd()))), memory->bytes());
    EXPECT_TRUE(mapped.has_value());
    return std::move(*mapped);
  }
  bool until(const std::function<bool()>& done) { return run_until(*loop, done); }

  std::unique_ptr<io::Loop> loop = *io::make_real_loop();
  io::Loop* far_loop = loop.get();
  int near_fd = -1;
  std::unique_ptr<RingMemory> memory, control;
  RingStream* near_ring = nullptr;
  RingStream* far_ring = nullptr;
  std::unique_ptr<Peer> client, depot;
};

wire::Buffer body_head(std::uint64_t id, std::size_t bytes) {
  return wire::frame({.request_id = id, .layer_count = 1}, wire::PutData{}, bytes);
}

TEST_F(RingStreamTest, MessagesAndBodiesLargerThanTheRingComeThrough) {
  open();
  const auto body = make_bytes(100'000, 5);
  client->send(wire::frame({.request_id = 1}, wire::Ping{}));
  client->send(body_head(2, body.size()), body);
  client->connection->flush();
  ASSERT_TRUE(until([&] { return depot->received.size() == 2; }));
  EXPECT_EQ(depot->received[1].payload, body);
  depot->send(wire::frame({.request_id = 1}, wire::PingReply{}));
  depot->connection->flush();
  ASSERT_TRUE(until([&] { return client->received.size() == 1; }));
}

TEST_F(RingStreamTest, NothingGoesThroughTheSocketWhileBothAreAwake) {
  open(RingMemory::kRingBytes);
  for (int i = 0; i < 10; ++i) {
    client->send(wire::frame({.request_id = 1}, wire::Ping{}));
    client->connection->flush();
  }
  std::array<std::byte, 8> bytes{};
  EXPECT_EQ(::recv(depot->connection->is_local() ? far_ring->fd() : -1, bytes.data(), bytes.size(), MSG_DONTWAIT), -1);
  ASSERT_TRUE(until([&] { return depot->received.size() == 10; }));
}

// Each sleeps in its own loop, on its own thread, between two messages: a lost wake-up would hang.
TEST_F(RingStreamTest, SleepersAreWoken) {
  const auto other = *io::make_real_loop();
  far_loop = other.get();
  loop->set_spin(std::chrono::microseconds(5));
  other->set_spin(std::chrono::microseconds(5));
  open();
  depot->on_request = [&] { depot->send(body_head(1, 6000), make_bytes(6000, 1)); };
  std::thread thread([&] { other->run(); });
  for (std::size_t i = 1; i <= 2000; ++i) {
    client->send(body_head(i, 5000), make_bytes(5000, i));
    client->connection->flush();
    const bool answered = until([&] { return client->received.size() == i; });
    EXPECT_TRUE(answered) << i;
    if (!answered) break;
  }
  other->stop();
  thread.join();
  depot.reset();  // before its loop
}

TEST_F(RingStreamTest, WhatWasWrittenBeforeTheEndIsReceived) {
  open();
  client->send(wire::frame({.request_id = 1}, wire::Ping{}));
  client->connection->flush();
  client.reset();
  ASSERT_TRUE(until([&] { return depot->closed.has_value(); }));
  EXPECT_EQ(depot->received.size(), 1U);
  EXPECT_EQ(depot->closed->code, Code::kUnavailable);
}

TEST_F(RingStreamTest, AWriterWhoseReaderGoesIsTold) {
  open();
  depot->connection->hold();
  client->send(body_head(1, 50'000), make_bytes(50'000, 1));
  client->connection->flush();
  for (int i = 0; i < 5; ++i) loop->run_once(Duration::zero());
  EXPECT_GT(client->connection->queued_bytes(), 0U);
  depot.reset();
  ASSERT_TRUE(until([&] { return client->closed.has_value(); }));
  EXPECT_EQ(client->closed->code, Code::kUnavailable);
}

TEST_F(RingStreamTest, AReaderThatDoesNotReadIsCut) {
  open(RingMemory::kRingBytesMin, {.stall_limit = Millis(20)});
  depot->connection->hold();
  client->send(body_head(1, 50'000), make_bytes(50'000, 1));
  client->connection->flush();
  ASSERT_TRUE(until([&] { return client->closed.has_value(); }));
  EXPECT_EQ(client->closed->code, Code::kTimeout);
}

TEST_F(RingStreamTest, WhoBreaksTheIndicesIsCut) {
  for (const int what : {0, 1}) {
    open();
    if (what == 0) control->control(0).tail += RingMemory::kRingBytesMin + 1;
    if (what == 1) control->control(1).head += 2 * RingMemory::kRingBytesMin;
    // The peer's index is looked at where the room that is known of does not do.
    for (std::size_t bytes = 0; bytes <= RingMemory::kRingBytesMin; bytes += wire::kHeaderBytes) {
      depot->send(wire::frame({.request_id = 1}, wire::PingReply{}));
    }
    depot->connection->flush();
    ASSERT_TRUE(until([&] { return depot->closed.has_value(); })) << what;
    EXPECT_EQ(depot->closed->code, Code::kCorrupt);
  }
}

TEST_F(RingStreamTest, GarbageInTheRingEndsTheConnection) {
  open();
  std::memset(control->data(0), 'x', 100);
  control->control(0).tail += 100;
  ASSERT_TRUE(until([&] { return depot->closed.has_value(); }));
  EXPECT_EQ(depot->closed->code, Code::kInvalid);
}

TEST_F(RingStreamTest, BytesOnTheSocketMeanNothing) {
  open();
  const auto garbage = make_bytes(10'000, 9);
  ASSERT_EQ(::send(near_fd, garbage.data(), garbage.size(), MSG_NOSIGNAL), 10'000);
  client->send(wire::frame({.request_id = 1}, wire::Ping{}));
  client->connection->flush();
  ASSERT_TRUE(until([&] { return depot->received.size() == 1; }));
  for (int i = 0; i < 10; ++i) loop->run_once(Duration::zero());
  EXPECT_FALSE(depot->closed);
}

TEST_F(RingStreamTest, AnIdleLoopSleeps) {
  open();
  loop->set_spin(std::chrono::microseconds(50));
  client->send(wire::frame({.request_id = 1}, wire::Ping{}));
  client->connection->flush();
  ASSERT_TRUE(until([&] { return depot->received.size() == 1; }));
  io::Timer later(*loop, [] {});
  later.arm_in(Millis(30));
  int turns = 0;
  for (; later.armed(); ++turns) loop->run_once(Duration::max());
  EXPECT_LT(turns, 30) << "a step of spinning is 5 us, all of it 50";
}

}  // namespace
}  // namespace kvd::net
