#include "net/connection.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include <gtest/gtest.h>

#include "base/random.h"
#include "net/socket_stream.h"
#include "net/testing/peer.h"

namespace kvd::net {
namespace {

using wire::Buffer;

// A message of every shape: without meta, with meta, with payload.
std::vector<Received> some_messages() {
  std::vector<Received> messages;
  const auto add = [&](Buffer frame, std::vector<std::byte> payload) {
    const auto header = wire::decode_header(frame);
    messages.push_back({*header, {frame.begin() + wire::kHeaderBytes, frame.end()}, std::move(payload)});
  };
  const std::vector<std::uint64_t> checksums{1, 2, 3};
  const wire::Header body{.request_id = 2, .items = 3, .layer_first = 0, .layer_count = 1};
  add(wire::frame({.request_id = 1}, wire::Ping{}), {});
  add(wire::frame(body, wire::PutData{.checksums = wire::U64View(checksums)}, 90), make_bytes(90, 1));
  add(wire::frame({.request_id = 3}, wire::Unpin{77}), {});
  add(wire::frame(body, wire::PutData{.checksums = wire::U64View(checksums)}, 3), make_bytes(3, 2));
  return messages;
}

Buffer stream_of(const std::vector<Received>& messages) {
  Buffer stream;
  for (const Received& m : messages) {
    std::array<std::byte, wire::kHeaderBytes> header;
    wire::encode_header(m.header, header);
    stream.insert(stream.end(), header.begin(), header.end());
    stream.insert(stream.end(), m.meta.begin(), m.meta.end());
    stream.insert(stream.end(), m.payload.begin(), m.payload.end());
  }
  return stream;
}

void write_all(int fd, Bytes bytes) {
  ASSERT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

void expect_equal(const std::vector<Received>& got, const std::vector<Received>& sent) {
  ASSERT_EQ(got.size(), sent.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].header, sent[i].header);
    EXPECT_EQ(got[i].meta, sent[i].meta);
    EXPECT_EQ(got[i].payload, sent[i].payload);
  }
}

Buffer put_data_frame(std::uint64_t id, std::size_t payload_bytes) {
  const std::vector<std::uint64_t> checksums{1};
  return wire::frame({.request_id = id, .items = 1, .layer_first = 0, .layer_count = 1},
                     wire::PutData{.checksums = wire::U64View(checksums)}, payload_bytes);
}

class ConnectionTest : public testing::Test {
 protected:
  // A connection, with the plain other end in far_.
  void open(const ConnectionOptions& options = {}) {
    auto [near, far] = make_socket_pair();
    far_ = std::move(far);
    peer_ = std::make_unique<Peer>(*loop_, std::move(near), options);
  }
  // Two connections.
  void open_both(const ConnectionOptions& options = {}) {
    auto [near, far] = make_socket_pair();
    peer_ = std::make_unique<Peer>(*loop_, std::move(near), options);
    other_ = std::make_unique<Peer>(*loop_, std::move(far), options);
  }
  bool until(const std::function<bool()>& done) { return run_until(*loop_, done); }
  void turn() { loop_->run_once(Duration::zero()); }

  std::unique_ptr<io::Loop> loop_ = *io::make_real_loop();
  io::UniqueFd far_;
  std::unique_ptr<Peer> peer_, other_;
};

TEST_F(ConnectionTest, MessagesArriveWholeHoweverTheStreamIsCut) {
  const auto sent = some_messages();
  const Buffer stream = stream_of(sent);
  for (std::size_t cut = 1; cut < stream.size(); ++cut) {
    SCOPED_TRACE(cut);
    open();
    peer_->piece_bytes = 1 + cut % 7;
    write_all(far_.get(), Bytes(stream).first(cut));
    turn();
    write_all(far_.get(), Bytes(stream).subspan(cut));
    ASSERT_TRUE(until([&] { return peer_->received.size() == sent.size(); }));
    expect_equal(peer_->received, sent);
    EXPECT_FALSE(peer_->closed);
  }
}

TEST_F(ConnectionTest, HangUpAtAnyByteEndsTheConnectionAndKeepsWholeMessages) {
  const auto sent = some_messages();
  const Buffer stream = stream_of(sent);
  for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
    SCOPED_TRACE(cut);
    open();
    write_all(far_.get(), Bytes(stream).first(cut));
    far_.reset();
    ASSERT_TRUE(until([&] { return peer_->closed.has_value(); }));
    EXPECT_EQ(peer_->closed->code, Code::kUnavailable);
    std::size_t whole = 0;
    for (std::size_t end = 0; whole < sent.size(); ++whole) {
      end += wire::kHeaderBytes + sent[whole].meta.size() + sent[whole].payload.size();
      if (end > cut) break;
    }
    EXPECT_EQ(peer_->received.size(), whole);
  }
}

TEST_F(ConnectionTest, RandomBytesEndTheConnectionAtOnce) {
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    open();
    Buffer bytes = make_bytes(1 + random.below(300), random.next());
    // Half of them start like a header.
    if (random.chance(1, 2))
      std::copy_n(stream_of(some_messages()).begin(), std::min<std::size_t>(6, bytes.size()), bytes.begin());
    bytes.resize(std::max<std::size_t>(bytes.size(), 64));
    write_all(far_.get(), bytes);
    ASSERT_TRUE(until([&] { return peer_->closed.has_value(); }));
    EXPECT_TRUE(peer_->received.empty());
    EXPECT_EQ(peer_->counters.protocol_errors.value(), 1U);
  }
}

TEST_F(ConnectionTest, AFlippedByteOfHeaderOrMetaEndsTheConnection) {
  const std::vector<Received> one{some_messages()[1]};
  const Buffer stream = stream_of(one);
  for (std::size_t i = 0; i < wire::kHeaderBytes + one[0].meta.size(); ++i) {
    SCOPED_TRACE(i);
    open();
    Buffer bad = stream;
    bad[i] ^= std::byte{0x10};
    write_all(far_.get(), bad);
    ASSERT_TRUE(until([&] { return peer_->closed.has_value(); }));
    EXPECT_TRUE(peer_->received.empty());
  }
}

TEST_F(ConnectionTest, AnotherProtocolIsToldSoAtItsFirstBytes) {
  open();
  peer_->farewell_text = Buffer(3, std::byte{'!'});
  write_all(far_.get(), as_bytes("GET"));
  ASSERT_TRUE(until([&] { return peer_->closed.has_value(); }));
  EXPECT_EQ(peer_->closed->code, Code::kInvalid);
  char text[8];
  EXPECT_EQ(::recv(far_.get(), text, sizeof text, 0), 3);
  EXPECT_EQ(::recv(far_.get(), text, sizeof text, 0), 0);
}

TEST_F(ConnectionTest, AMetaBeyondTheLimitIsRefusedBeforeItIsRead) {
  open({.meta_bytes_max = 8});
  write_all(far_.get(), wire::frame({.request_id = 1}, wire::Unpin{1}));
  EXPECT_TRUE(until([&] { return peer_->received.size() == 1; }));
  Buffer longer = wire::frame({.request_id = 1}, wire::StatsReply{"123456789"});
  longer.resize(wire::kHeaderBytes);
  write_all(far_.get(), longer);
  ASSERT_TRUE(until([&] { return peer_->closed.has_value(); }));
  EXPECT_EQ(peer_->closed->code, Code::kCorrupt);
}

TEST_F(ConnectionTest, SmallMessagesTravelTogether) {
  open_both();
  for (std::uint64_t id = 1; id <= 20; ++id) {
    peer_->connection->send({.head = wire::frame({.request_id = id}, wire::Unpin{id}), .body = {}, .on_done = {}});
  }
  peer_->connection->flush();
  ASSERT_TRUE(until([&] { return other_->received.size() == 20; }));
  EXPECT_EQ(peer_->counters.send_calls.value(), 1U);
  EXPECT_LE(other_->counters.recv_calls.value(), 3U);  // 1, but a turn of the loop may end between two messages
  EXPECT_EQ(other_->counters.messages_in.value(), 20U);
}

// Each wake-up takes a core from what computes beside it.
TEST_F(ConnectionTest, APayloadThatTricklesIsTakenInSteps) {
  constexpr std::size_t kPiece = 4 << 10, kPieces = 512;
  auto [near, far] = make_tcp_pair();
  far_ = std::move(far);
  peer_ = std::make_unique<Peer>(*loop_, std::move(near));
  write_all(far_.get(), put_data_frame(1, kPiece * kPieces));
  const std::vector<std::byte> payload = make_bytes(kPiece * kPieces, 1);
  const auto write = [&](std::size_t piece) { write_all(far_.get(), Bytes(payload).subspan(piece * kPiece, kPiece)); };
  for (std::size_t piece = 0; piece + 2 < kPieces; ++piece) {
    write(piece);
    turn();
  }
  EXPECT_LT(peer_->counters.recv_calls.value(), kPieces / 4);
  // What is less than a step is taken all the same, soon, and then a peer that sends nothing costs nothing.
  write(kPieces - 2);
  const std::size_t all = put_data_frame(1, kPiece * kPieces).size() + kPiece * (kPieces - 1);
  ASSERT_TRUE(until([&] { return peer_->counters.bytes_in.value() == all; }));
  const auto calls = peer_->counters.recv_calls.value();
  const Time end = after(loop_->now(), Millis(60));
  while (loop_->now() < end) loop_->run_once(Millis(1));
  EXPECT_LE(peer_->counters.recv_calls.value(), calls + 1);
  write(kPieces - 1);
  ASSERT_TRUE(until([&] { return peer_->received.size() == 1; }));
  EXPECT_EQ(peer_->received[0].payload, payload);
}

// What takes long to answer, asked many times over by one peer, does not keep the loop from the others.
TEST_F(ConnectionTest, AConnectionLeavesTheLoopToOthers) {
  Buffer stream;
  for (std::uint64_t id = 1; id <= 20; ++id) {
    const Buffer ping = wire::frame({.request_id = id}, wire::Ping{});
    stream.insert(stream.end(), ping.begin(), ping.end());
  }
  open();
  peer_->on_request = [&] {
    for (const Time until = loop_->now() + Millis(2); loop_->now() < until;) {
    }
  };
  write_all(far_.get(), stream);
  loop_->run_once(Millis(100));
  EXPECT_GE(peer_->received.size(), 1U);
  EXPECT_LE(peer_->received.size(), 2U);  // its readiness and a timer of the same turn
  EXPECT_TRUE(until([&] { return peer_->received.size() == 20; }));
}

TEST_F(ConnectionTest, ALargeBodyArrivesUnchanged) {
  open_both();
  other_->piece_bytes = 98304;
  const auto body = make_bytes(9'000'001, 3);
  peer_->send(put_data_frame(1, body.size()), body);
  ASSERT_TRUE(until([&] { return other_->received.size() == 1; }));
  EXPECT_TRUE(other_->received[0].payload == body);
  EXPECT_EQ(peer_->connection->queued_bytes(), 0U);
}

TEST_F(ConnectionTest, AMetaLongerThanTheReadAheadArrives) {
  open_both();
  const std::string text(3'000'000, 'x');
  peer_->send(wire::frame({.request_id = 1}, wire::StatsReply{text}));
  ASSERT_TRUE(until([&] { return other_->received.size() == 1; }));
  EXPECT_EQ(as_text(other_->received[0].meta), text);
  const auto held = [&] { return other_->connection->inbound_bytes_held(); };
  EXPECT_LE(held(), 512U) << "an idle connection keeps what it no longer needs";
  // The same of a message with payload, whose meta is valid until the payload has come.
  const std::vector<std::uint64_t> checksums(100'000);
  const wire::Header header{.request_id = 2, .items = 100'000, .layer_first = 0, .layer_count = 1};
  peer_->send(wire::frame(header, wire::PutData{.checksums = wire::U64View(std::span(checksums))}, 9),
              make_bytes(9, 1));
  ASSERT_TRUE(until([&] { return other_->received.size() == 2; }));
  EXPECT_GE(other_->received[1].meta.size(), 800'000U);
  EXPECT_LE(held(), 512U);
  other_->discard = true;
  peer_->send(put_data_frame(3, 100'000), make_bytes(100'000, 2));
  ASSERT_TRUE(until([&] {
    return other_->connection->last_received() > Time{} &&
           other_->counters.bytes_in.value() == peer_->counters.bytes_out.value();
  }));
  EXPECT_LE(held(), 512U) << "nor where bytes without a place went";
}

TEST_F(ConnectionTest, NothingLandsInAPlaceThatIsNoLongerNamed) {
  open_both();
  const std::size_t n = 4'000'000;
  // Places end after 100,000 bytes: from then on the handler names none.
  struct Stingy final : MessageHandler {
    std::vector<std::byte> place = std::vector<std::byte>(200'000, std::byte{0xEE});
    std::size_t landed = 0;
    bool ended = false;
    Status on_message(const wire::Header&, Bytes) override { return {}; }
    std::size_t payload_places(std::span<iovec> out) override {
      if (landed >= 100'000) return 0;
      out[0] = {place.data() + landed, 100'000 - landed};
      return 1;
    }
    void payload_landed(std::size_t bytes) override { landed += bytes; }
    Status on_payload_end() override {
      ended = true;
      return {};
    }
    void on_closed(const Error&) override {}
  } stingy;
  auto [near, far] = make_socket_pair();
  Connection connection(*loop_, stingy, peer_->counters, make_socket_stream(std::move(near)), {});
  ASSERT_TRUE(connection.start().has_value());
  Peer sender(*loop_, std::move(far));
  const auto body = make_bytes(n, 4);
  sender.send(put_data_frame(1, n), body);
  sender.send(wire::frame({.request_id = 2}, wire::Ping{}));
  ASSERT_TRUE(until([&] { return stingy.ended; }));
  EXPECT_EQ(stingy.landed, n);
  EXPECT_TRUE(std::equal(body.begin(), body.begin() + 100'000, stingy.place.begin()));
  EXPECT_TRUE(std::all_of(stingy.place.begin() + 100'000, stingy.place.end(),
                          [](std::byte b) { return b == std::byte{0xEE}; }));
}

TEST_F(ConnectionTest, DiscardedPayloadKeepsTheFraming) {
  open_both();
  other_->discard = true;
  const auto body = make_bytes(3'000'000, 5);
  peer_->send(put_data_frame(1, body.size()), body);
  peer_->send(wire::frame({.request_id = 2}, wire::Unpin{5}));
  ASSERT_TRUE(until([&] { return other_->received.size() == 2; }));
  EXPECT_EQ(other_->received[1].header.request_id, 2U);
  EXPECT_EQ(std::ranges::count(other_->received[0].payload, std::byte{0}), 3'000'000);
}

TEST_F(ConnectionTest, CloseInsideACallbackStopsEverything) {
  open_both();
  other_->on_landed = [&] { other_->connection->close(Error{Code::kCancelled, 0, "enough"}); };
  const auto body = make_bytes(3'000'000, 6);
  peer_->send(put_data_frame(1, body.size()), body);
  ASSERT_TRUE(until([&] { return other_->closed.has_value(); }));
  EXPECT_EQ(other_->closed->code, Code::kCancelled);
  EXPECT_TRUE(other_->received.empty());
  ASSERT_TRUE(until([&] { return peer_->closed.has_value(); }));
}

TEST_F(ConnectionTest, AnErrorOfTheHandlerEndsTheConnection) {
  open();
  peer_->answer = fail(Code::kCorrupt, "nonsense");
  write_all(far_.get(), wire::frame({.request_id = 1}, wire::Ping{}));
  ASSERT_TRUE(until([&] { return peer_->closed.has_value(); }));
  EXPECT_EQ(peer_->closed->code, Code::kCorrupt);
}

// Bodies of every fate: on_done comes exactly once, and the peer gets no byte of what was taken back.
class SendTest : public ConnectionTest {
 protected:
  static constexpr std::size_t kBodyBytes = 2'000'000;  // far more than a socket pair buffers

  SendId send_body(std::uint64_t id) {
    const std::size_t i = bodies_.size();
    bodies_.push_back(make_bytes(kBodyBytes, id));
    done_.push_back(0);
    return peer_->connection->send(
        {.head = put_data_frame(id, kBodyBytes), .body = {Bytes(bodies_[i])}, .on_done = [this, i] { ++done_[i]; }});
  }
  std::deque<std::vector<std::byte>> bodies_;
  std::deque<int> done_;
};

TEST_F(SendTest, SendNeverCallsBackAndTellsOnceWhenSent) {
  open_both();
  send_body(1);
  send_body(2);
  EXPECT_EQ(done_, (std::deque<int>{0, 0}));
  peer_->connection->flush();
  ASSERT_TRUE(until([&] { return other_->received.size() == 2; }));
  EXPECT_EQ(done_, (std::deque<int>{1, 1}));
  EXPECT_TRUE(other_->received[1].payload == bodies_[1]);
}

TEST_F(SendTest, AMessageNotYetStartedIsTakenBackWithoutATrace) {
  open_both();
  send_body(1);
  const SendId second = send_body(2);
  send_body(3);
  EXPECT_TRUE(peer_->connection->abandon(second));
  EXPECT_EQ(done_, (std::deque<int>{0, 1, 0}));
  EXPECT_FALSE(peer_->connection->abandon(second));
  peer_->connection->flush();
  ASSERT_TRUE(until([&] { return other_->received.size() == 2; }));
  EXPECT_EQ(other_->received[1].header.request_id, 3U);
  EXPECT_EQ(done_, (std::deque<int>{1, 1, 1}));
  EXPECT_EQ(peer_->connection->queued_bytes(), 0U);
}

TEST_F(SendTest, TheRestOfAStartedMessageGoesOutAsZeros) {
  open_both();
  const SendId first = send_body(1);
  send_body(2);
  peer_->connection->flush();  // fills the socket; nobody reads yet
  EXPECT_EQ(done_[0], 0);
  EXPECT_FALSE(peer_->connection->abandon(first));
  EXPECT_EQ(done_[0], 1);
  std::ranges::fill(bodies_[0], std::byte{0xEE});  // the owner's again
  ASSERT_TRUE(until([&] { return other_->received.size() == 2; }));
  const auto& payload = other_->received[0].payload;
  const auto original = make_bytes(kBodyBytes, 1);
  const auto differs = std::ranges::mismatch(payload, original).in1;
  EXPECT_NE(differs, payload.begin());
  EXPECT_TRUE(std::all_of(differs, payload.end(), [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_TRUE(other_->received[1].payload == bodies_[1]);
  EXPECT_EQ(done_, (std::deque<int>{1, 1}));
}

TEST_F(SendTest, AStartedMessageIsNotWithdrawn) {
  open_both();
  const SendId first = send_body(1);
  const SendId second = send_body(2);
  peer_->connection->flush();
  EXPECT_FALSE(peer_->connection->withdraw(first));
  EXPECT_TRUE(peer_->connection->withdraw(second));
  EXPECT_EQ(done_, (std::deque<int>{0, 1}));
  ASSERT_TRUE(until([&] { return other_->received.size() == 1; }));
  EXPECT_TRUE(other_->received[0].payload == bodies_[0]);
}

TEST_F(SendTest, CloseGivesAllBodiesBack) {
  open_both();
  send_body(1);
  send_body(2);
  peer_->connection->flush();
  peer_->connection->close(Error{Code::kCancelled, 0, "test"});
  EXPECT_EQ(done_, (std::deque<int>{1, 1}));
  EXPECT_FALSE(peer_->closed);  // told from the loop, not from inside close()
  ASSERT_TRUE(until([&] { return peer_->closed.has_value(); }));
  send_body(3);
  ASSERT_TRUE(until([&] { return done_[2] == 1; }));
}

TEST_F(SendTest, DestructionGivesAllBodiesBackSilently) {
  open_both();
  send_body(1);
  peer_->connection->flush();
  peer_->connection.reset();
  EXPECT_EQ(done_[0], 1);
  EXPECT_FALSE(peer_->closed);
}

TEST_F(SendTest, CongestionIsToldAndItsEndToo) {
  open_both({.queue_bytes_high = 3'000'000});
  send_body(1);
  EXPECT_FALSE(peer_->connection->congested());
  send_body(2);
  EXPECT_TRUE(peer_->connection->congested());
  peer_->connection->flush();
  ASSERT_TRUE(until([&] { return other_->received.size() == 2; }));
  EXPECT_EQ(peer_->drained, 1);
  EXPECT_FALSE(peer_->connection->congested());
}

TEST_F(SendTest, APeerThatDoesNotReadIsCut) {
  open({.stall_limit = std::chrono::milliseconds(5)});
  send_body(1);
  peer_->connection->flush();
  ASSERT_TRUE(until([&] { return peer_->closed.has_value(); }));
  EXPECT_EQ(peer_->closed->code, Code::kTimeout);
  EXPECT_EQ(done_[0], 1);
  EXPECT_EQ(peer_->counters.stalled.value(), 1U);
}

TEST_F(SendTest, APeerThatStopsWithinAMessageIsCut) {
  open({.stall_limit = std::chrono::milliseconds(5)});
  write_all(far_.get(), put_data_frame(1, 100));
  ASSERT_TRUE(until([&] { return peer_->closed.has_value(); }));
  EXPECT_EQ(peer_->closed->code, Code::kTimeout);
}

// A byte now and then is progress, but not enough of it: neither of a meta nor of a payload.
TEST_F(SendTest, APeerWhoseMessageTricklesInIsCut) {
  Buffer long_meta = wire::frame({.request_id = 1}, wire::StatsReply{std::string(1'000'000, 'x')});
  long_meta.resize(100);
  for (const Buffer& begun : {long_meta, put_data_frame(1, 1'000'000)}) {
    SCOPED_TRACE(begun.size());
    open({.stall_limit = std::chrono::milliseconds(20), .progress_bytes_min = 100'000});
    write_all(far_.get(), begun);
    EXPECT_TRUE(until([&] {
      static_cast<void>(::send(far_.get(), "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT));
      return peer_->closed.has_value();
    }));
    EXPECT_EQ(peer_->closed->code, Code::kTimeout);
    EXPECT_EQ(peer_->counters.stalled.value(), 1U);
  }
}

// The same of one that takes what it asked for by and by: what it is sent is pinned.
TEST_F(SendTest, APeerThatReadsALittleIsCut) {
  open({.stall_limit = std::chrono::milliseconds(100), .progress_bytes_min = 1'000'000'000});
  for (std::uint64_t id = 1; id <= 60; ++id) send_body(id);
  peer_->connection->flush();
  Buffer sink(std::size_t{128} << 10);
  ssize_t got = 0;
  EXPECT_TRUE(until([&] {
    got += std::max<ssize_t>(0, ::recv(far_.get(), sink.data(), sink.size(), MSG_DONTWAIT));
    return peer_->closed.has_value();
  }));
  EXPECT_EQ(peer_->closed->code, Code::kTimeout);
  EXPECT_GT(got, 0);
}

// Many messages, each of them whole in time, are no slow one.
TEST_F(SendTest, APeerWithMuchToSayIsNotASlowOne) {
  open({.stall_limit = std::chrono::seconds(1), .progress_bytes_min = 1'000'000'000});
  const Buffer ping = wire::frame({.request_id = 1}, wire::Ping{});
  io::Timer later(*loop_, [] {});
  later.arm_in(std::chrono::milliseconds(1500));
  std::size_t at = 0;
  ASSERT_TRUE(until([&] {
    write_all(far_.get(), Bytes(ping).subspan(at, 16));
    at = (at + 16) % ping.size();
    return !later.armed();
  }));
  EXPECT_FALSE(peer_->closed);
}

TEST_F(SendTest, AnIdleConnectionIsNotAStalledOne) {
  open({.stall_limit = std::chrono::milliseconds(1)});
  write_all(far_.get(), wire::frame({.request_id = 1}, wire::Ping{}));
  ASSERT_TRUE(until([&] { return peer_->received.size() == 1; }));
  io::Timer later(*loop_, [] {});
  later.arm_in(std::chrono::milliseconds(10));
  ASSERT_TRUE(until([&] { return !later.armed(); }));
  EXPECT_FALSE(peer_->closed);
}

// A request is small, its reply may not be: many that come at once must not be answered all at once.
TEST_F(SendTest, RepliesToManyRequestsAreBoundedAsTheyAreMade) {
  constexpr std::size_t kRequests = 200;
  constexpr std::size_t kReply = std::size_t{64} << 10;
  for (const bool reads : {false, true}) {
    SCOPED_TRACE(reads);
    open({.owned_bytes_max = 4 * kReply, .stall_limit = reads ? Duration::max() : Millis(100)});
    std::size_t replies = 0;
    std::size_t most = 0;
    peer_->on_request = [&] {
      ++replies;
      peer_->connection->send({.head = Buffer(kReply), .body = {}, .on_done = {}});
      most = std::max(most, peer_->connection->queued_bytes());
    };
    Buffer requests;
    for (std::size_t i = 0; i < kRequests; ++i) {
      const Buffer one = wire::frame({.request_id = 1 + i}, wire::Ping{});
      requests.insert(requests.end(), one.begin(), one.end());
    }
    write_all(far_.get(), requests);
    std::size_t got = 0;
    Buffer sink(std::size_t{1} << 20);
    EXPECT_TRUE(until([&] {
      for (ssize_t n = 1; reads && n > 0; got += n > 0 ? static_cast<std::size_t>(n) : 0)
        n = ::recv(far_.get(), sink.data(), sink.size(), MSG_DONTWAIT);
      return reads ? got == kRequests * kReply : peer_->closed.has_value();
    }));
    EXPECT_LE(most, 5 * kReply);
    if (reads) {
      EXPECT_EQ(replies, kRequests);
    } else {
      EXPECT_EQ(peer_->closed->code, Code::kTimeout);
    }
  }
}

// Many peers that do not read share one bound: beyond it each has a little.
TEST_F(SendTest, RepliesToAllPeersAreBoundedTogether) {
  constexpr std::size_t kReply = std::size_t{16} << 10;
  open({.owned_bytes_all_max = 100'000, .stall_limit = Duration::max()});
  peer_->counters.owned_bytes.add(100'001);  // of others
  std::size_t most = 0;
  std::size_t replies = 0;
  peer_->on_request = [&] {
    ++replies;
    peer_->connection->send({.head = Buffer(kReply), .body = {}, .on_done = {}});
    most = std::max(most, peer_->connection->queued_bytes());
  };
  Buffer requests;
  for (std::size_t i = 0; i < 200; ++i) {
    const Buffer one = wire::frame({.request_id = 1 + i}, wire::Ping{});
    requests.insert(requests.end(), one.begin(), one.end());
  }
  write_all(far_.get(), requests);
  for (int i = 0; i < 20; ++i) loop_->run_once(Millis(1));
  EXPECT_LT(replies, 200U);
  EXPECT_LE(most, (std::size_t{64} << 10) + kReply);
  EXPECT_EQ(peer_->counters.owned_bytes.value(), 100'001 + peer_->connection->queued_bytes());
  peer_->counters.owned_bytes.sub(100'001);
  std::size_t got = 0;
  Buffer sink(std::size_t{1} << 20);
  EXPECT_TRUE(until([&] {
    for (ssize_t n = 1; n > 0; got += n > 0 ? static_cast<std::size_t>(n) : 0)
      n = ::recv(far_.get(), sink.data(), sink.size(), MSG_DONTWAIT);
    return got == 200 * kReply;
  }));
  EXPECT_EQ(peer_->counters.owned_bytes.value(), 0U);
}

// Messages of heads only, as a GET through shared memory has: who stops when told is not cut.
TEST_F(SendTest, ManyHeadsAreCongestionBeforeTheyAreTooMany) {
  constexpr std::size_t kHead = std::size_t{64} << 10;
  constexpr std::size_t kHeads = 100;
  open({.owned_bytes_max = 8 * kHead, .stall_limit = Duration::max()});
  std::size_t sent = 0;
  const auto produce = [&] {
    for (; sent < kHeads && !peer_->connection->congested(); ++sent)
      peer_->connection->send({.head = Buffer(kHead), .body = {}, .on_done = {}});
    peer_->connection->flush();
  };
  peer_->on_drain = produce;
  produce();
  EXPECT_LT(sent, kHeads);
  std::size_t got = 0;
  Buffer sink(std::size_t{1} << 20);
  EXPECT_TRUE(until([&] {
    for (ssize_t n = 1; n > 0; got += n > 0 ? static_cast<std::size_t>(n) : 0)
      n = ::recv(far_.get(), sink.data(), sink.size(), MSG_DONTWAIT);
    return got == kHeads * kHead;
  }));
  EXPECT_FALSE(peer_->closed);
}

// Who reads slowly, but reads, gets what was said last; who does not has a second.
TEST_F(SendTest, AFarewellLastsAsLongAsThePeerTakesIt) {
  constexpr std::size_t kBytes = 1'500'000;
  for (const bool reads : {true, false}) {
    open();
    peer_->connection->send({.head = Buffer(kBytes), .body = {}, .on_done = {}});
    peer_->connection->close_after_flush({Code::kUnavailable, 0, "that is all"});
    const Time began = loop_->now();
    Time next = began;
    std::size_t got = 0;
    Buffer sink(20'000);
    EXPECT_TRUE(until([&] {
      if (!reads || loop_->now() < next) return peer_->closed && !reads;
      next = after(loop_->now(), Millis(20));
      const ssize_t n = ::recv(far_.get(), sink.data(), sink.size(), MSG_DONTWAIT);
      if (n > 0) got += static_cast<std::size_t>(n);
      return n == 0;
    }));
    EXPECT_EQ(got, reads ? kBytes : 0U);
    EXPECT_GT(loop_->now() - began, Millis(900)) << "longer than a second's worth was there to read";
    EXPECT_LT(loop_->now() - began, std::chrono::seconds(4));
  }
}

TEST_F(SendTest, UnreadRepliesAreBounded) {
  open({.owned_bytes_max = 100'000});
  std::size_t most = 0;
  for (int i = 0; i < 100'000 && !peer_->connection->closed(); ++i) {
    peer_->connection->send({.head = wire::frame({.request_id = 1}, wire::PingReply{}), .body = {}, .on_done = {}});
    peer_->connection->flush();
    most = std::max(most, peer_->connection->queued_bytes());
  }
  EXPECT_LE(most, 100'000U + wire::kHeaderBytes);
  ASSERT_TRUE(until([&] { return peer_->closed.has_value(); }));
  EXPECT_EQ(peer_->closed->code, Code::kNoSpace);
}

}  // namespace
}  // namespace kvd::net
