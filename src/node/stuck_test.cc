// Clients that have asked for parts of the pool and do not read them, beside one that waits for room.
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "node/testing/resp_client.h"

namespace kvd::node {
namespace {

constexpr std::size_t kValueBytes = 700'000;  // some 70 of them are all that GETs may pin of a pool of 64 MiB
constexpr std::size_t kTakenBytes = kValueBytes + 4 * kPageBytes;

class StuckTest : public testing::Test {
 protected:
  // All room is taken by clients that read nothing, but for what is there for those who read.
  void fill(std::size_t others = 0) {
    ASSERT_EQ(RespClient(*rig_).call({"SET", "k", resp_text(kValueBytes, 1)}, "+OK\r\n"), "+OK\r\n");
    while (rig_->stat("node", "pinned_bytes") + kTakenBytes <= kPinsMax - kPinsMax / 16) {
      const std::uint64_t pinned = rig_->stat("node", "pinned_bytes");
      deaf_.push_back(std::make_unique<RespClient>(*rig_));
      const std::string ask = resp_command({"GET", "k"});
      ASSERT_EQ(::send(deaf_.back()->fd(), ask.data(), ask.size(), MSG_NOSIGNAL), static_cast<ssize_t>(ask.size()));
      ASSERT_TRUE(rig_->until([&] { return rig_->stat("node", "pinned_bytes") > pinned; }));
    }
    ASSERT_TRUE(rig_->until([&] { return connected() == deaf_.size() + others; })) << "who has set the value is gone";
  }
  void start(Duration contended_stall_limit) {
    NodeOptions options = test_options();
    options.resp_ack = AckLevel::kPooled;
    options.limits.contended_stall_limit = contended_stall_limit;
    rig_ = std::make_unique<Rig>(options);
  }
  // One that has read what is asked for there, twice.
  std::unique_ptr<RawClient> connect_reader(const Records& records) {
    auto client = rig_->connect();
    client->open(records.ns());
    read(*client);
    read(*client);
    return client;
  }
  static void read(RawClient& client) {
    client.send(Records::get(client.new_id(), 0, 0, 1));
    for (bool last = false; !last;) {
      const net::Received reply = client.next();
      ASSERT_EQ(reply.header.status, Code::kOk);
      last = reply.header.last();
    }
  }
  [[nodiscard]] std::size_t connected() const { return rig_->stat("node", "resp_connections"); }

  static constexpr std::uint64_t kPinsMax = (std::uint64_t{64} << 20) / 100 * 75;
  std::unique_ptr<Rig> rig_;
  std::vector<std::unique_ptr<RespClient>> deaf_;
};

TEST_F(StuckTest, WhoDoesNotReadLosesItsRoomWhenAGetWaitsForIt) {
  start(Millis(20));
  const Records records(small_namespace(3, 256 << 10));
  ASSERT_TRUE(rig_->put_all(records, 0, 1));
  fill();
  const std::size_t before = connected();
  const auto client = rig_->connect();
  ASSERT_EQ(client->open(records.ns()), 0U);
  read(*client);
  EXPECT_LT(connected(), before);
  EXPECT_GT(connected(), before / 2) << "no more than somebody waits for";
}

TEST_F(StuckTest, WhoDoesNotReadLosesItsRoomWhenARedisClientFindsNone) {
  start(Millis(20));
  fill();
  const std::size_t before = connected();
  RespClient client(*rig_);
  const std::string value = resp_bulk(resp_text(kValueBytes, 1));
  EXPECT_TRUE(rig_->until([&] {
    client.send(resp_command({"GET", "k"}));
    const std::string first = client.read(1);
    if (first == "-") return client.line().empty();
    EXPECT_TRUE(first + client.read(value.size() - 1) == value);
    return true;
  }));
  EXPECT_LE(connected(), before) << "one has come, and one at least was cut";
}

TEST_F(StuckTest, WhoHasReadBeforeGetsBesideThoseWhoDoNot) {
  start(std::chrono::hours(1));
  const Records records(small_namespace(2, 352 << 10));  // as much as a value, and less than a 64th
  ASSERT_TRUE(rig_->put_all(records, 0, 1));
  const auto reader = connect_reader(records), newcomer = rig_->connect();
  ASSERT_EQ(newcomer->open(records.ns()), 0U);
  fill();
  const std::size_t before = newcomer->peer().received.size();
  newcomer->send(Records::get(newcomer->new_id(), 0, 0, 1));
  for (int i = 0; i < 3; ++i) read(*reader);
  EXPECT_EQ(newcomer->peer().received.size(), before) << "who has read nothing waits, and nobody behind it";
  EXPECT_EQ(connected(), deaf_.size());
  deaf_.clear();
  EXPECT_TRUE(rig_->until([&] { return newcomer->peer().received.size() > before; }));
}

TEST_F(StuckTest, WhoReadsWhileItsGetWaitsIsAskedAgain) {
  start(std::chrono::hours(1));
  const Records records(small_namespace(2, 352 << 10));
  ASSERT_TRUE(rig_->put_all(records, 0, 1));
  const auto newcomer = rig_->connect();
  ASSERT_EQ(newcomer->open(records.ns()), 0U);
  fill();
  const auto has_body = [](const net::Received& message) { return !message.payload.empty(); };
  const std::uint64_t get = newcomer->new_id();
  newcomer->send(Records::get(get, 0, 0, 1));
  for (std::size_t read = 0; read < 2 * kValueBytes;) {
    const net::Received reply = newcomer->call(wire::frame({.request_id = newcomer->new_id()}, wire::Stats{}));
    if (reply.header.request_id == get) break;
    read += reply.meta.size();
  }
  EXPECT_TRUE(rig_->until([&] { return std::ranges::any_of(newcomer->peer().received, has_body); }));
  EXPECT_EQ(connected(), deaf_.size()) << "nobody was cut";
}

TEST_F(StuckTest, ARedisClientThatHasReadBeforeGetsBesideThoseWhoDoNot) {
  start(std::chrono::hours(1));
  ASSERT_EQ(RespClient(*rig_).call({"SET", "k", resp_text(kValueBytes, 1)}, "+OK\r\n"), "+OK\r\n");
  const std::string value = resp_bulk(resp_text(kValueBytes, 1));
  RespClient reader(*rig_), newcomer(*rig_);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(reader.call({"GET", "k"}, value) == value);
  fill(2);
  EXPECT_EQ(newcomer.call({"GET", "k"}, "-"), "-");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(reader.call({"GET", "k"}, value) == value);
}

TEST_F(StuckTest, NobodyIsCutWhileNobodyWaits) {
  start(Millis(1));
  fill();
  const std::size_t before = connected();
  const Time end = rig_->loop->now() + Millis(300);
  while (rig_->loop->now() < end) rig_->loop->run_once(Millis(10));
  EXPECT_EQ(connected(), before);
}

}  // namespace
}  // namespace kvd::node
