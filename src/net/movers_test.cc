// On real sockets and threads. Where a test needs a thread to be within a call it holds it there by a gate.
#include "net/movers.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "net/body_turns.h"
#include "net/shaper.h"
#include "net/socket_stream.h"
#include "net/testing/peer.h"

namespace kvd::net {
namespace {

constexpr std::size_t kBig = 3'000'000;  // several moves

wire::Buffer mover_frame(std::uint64_t id, std::size_t payload_bytes) {
  const std::vector<std::uint64_t> checksums{1};
  return wire::frame({.request_id = id, .items = 1, .layer_first = 0, .layer_count = 1},
                     wire::PutData{.checksums = wire::U64View(checksums)}, payload_bytes);
}

// Lets calls through, or holds them until it is opened.
class CallGate {
 public:
  // Closed until set(true), or its end: a test that fails must not leave a thread within.
  struct Closed {
    explicit Closed(CallGate& closed) : gate(closed) { gate.set(false); }
    ~Closed() { gate.set(true); }
    Closed(const Closed&) = delete;
    Closed& operator=(const Closed&) = delete;
    CallGate& gate;
  };
  void set(bool open) {
    {
      const std::lock_guard lock(mutex_);
      open_ = open;
    }
    changed_.notify_all();
  }
  // On a thread of the movers.
  void pass() {
    std::unique_lock lock(mutex_);
    ++within_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    --within_;
  }
  void wait_until_within(int calls) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return within_ >= calls; });
  }
  [[nodiscard]] int within() {
    const std::lock_guard lock(mutex_);
    return within_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int within_ = 0;
};

class MoversTest : public testing::Test {
 protected:
  // One connection whose end is a plain socket, or a peer that receives.
  struct End {
    std::unique_ptr<Peer> near;
    std::unique_ptr<Peer> far;
    io::UniqueFd socket;
  };
  void start(std::uint32_t threads) {
    auto movers = Movers::start(*loop_, threads, [this](int socket, std::span<const iovec> pieces) {
      EXPECT_NE(std::this_thread::get_id(), loop_thread_);
      gate_.pass();
      std::size_t bytes = 0;
      for (const iovec& piece : pieces) bytes += piece.iov_len;
      EXPECT_LE(bytes, Movers::kCallBytes);
      return send_to_socket(socket, pieces);
    });
    ASSERT_TRUE(movers.has_value());
    movers_ = std::move(*movers);
  }
  End open(bool far_receives, ConnectionOptions options = {}) {
    options.movers = movers_.get();
    auto [near, far] = make_tcp_pair();
    End end{.near = std::make_unique<Peer>(*loop_, std::move(near), options), .far = nullptr, .socket = {}};
    if (far_receives)
      end.far = std::make_unique<Peer>(*loop_, std::move(far));
    else
      end.socket = std::move(far);
    return end;
  }
  // In pieces of all lengths.
  SendId send(End& end, std::uint64_t id, std::size_t bytes = kBig) {
    const std::size_t i = bodies_.size();
    bodies_.push_back(make_bytes(bytes, id));
    done_.push_back(0);
    std::vector<Bytes> pieces;
    for (Bytes left = bodies_[i]; !left.empty(); left = left.subspan(pieces.back().size()))
      pieces.push_back(left.first(std::min<std::size_t>(left.size(), 1 + (pieces.size() * 7919) % 100'000)));
    return end.near->connection->send(
        {.head = mover_frame(id, bytes), .body = std::move(pieces), .on_done = [this, i] { ++done_[i]; }});
  }
  // Runs `call`, which must not return while a thread is within a call of the gate. Opens that when it has waited for a
  // while, or at once when `call` has returned all the same.
  template <class Call>
  void expect_waits(Call call) {
    std::mutex mutex;
    std::condition_variable told;
    bool returned = false;
    gate_.wait_until_within(1);
    std::thread opener([&] {
      std::unique_lock lock(mutex);
      told.wait_for(lock, Millis(30), [&] { return returned; });
      EXPECT_FALSE(returned) << "it did not wait for the mover";
      gate_.set(true);
    });
    call();
    EXPECT_EQ(gate_.within(), 0) << "nobody reads any more";
    {
      const std::lock_guard lock(mutex);
      returned = true;
    }
    told.notify_all();
    opener.join();
  }
  bool until(const std::function<bool()>& done) { return run_until(*loop_, done); }
  // Something small has come from each, so that none is alone for the next second.
  void talk(std::initializer_list<End*> ends) {
    for (End* const end : ends) end->far->send(wire::frame({.request_id = 1}, wire::Ping{}));
    ASSERT_TRUE(until([&] { return std::ranges::all_of(ends, [](End* e) { return !e->near->received.empty(); }); }));
  }
  // A peer may have all of a body before the loop hears of it.
  void expect_all_done() {
    until([&] { return std::ranges::count(done_, 0) == 0; });
    EXPECT_EQ(done_, std::deque<int>(done_.size(), 1));
  }

  const std::thread::id loop_thread_ = std::this_thread::get_id();
  CallGate gate_;
  std::unique_ptr<io::Loop> loop_ = *io::make_real_loop();
  std::deque<std::vector<std::byte>> bodies_;
  std::deque<int> done_;
  std::unique_ptr<Movers> movers_;
};

TEST_F(MoversTest, BodiesOfSeveralConnectionsArriveWholeAndInOrder) {
  start(2);
  std::vector<End> ends;
  for (int i = 0; i < 5; ++i) ends.push_back(open(true, {.queue_bytes_high = kBig}));
  for (std::uint64_t round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < ends.size(); ++i) {
      send(ends[i], 10 * i + round);
      ends[i].near->connection->send({.head = wire::frame({.request_id = 7}, wire::Ping{}), .body = {}, .on_done = {}});
      ends[i].near->connection->flush();
    }
  }
  ASSERT_TRUE(
      until([&] { return std::ranges::all_of(ends, [](const End& e) { return e.far->received.size() == 6; }); }));
  expect_all_done();
  std::uint64_t moves = 0, moved_bytes = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    for (std::size_t round = 0; round < 3; ++round) {
      EXPECT_TRUE(ends[i].far->received[2 * round].payload == bodies_[round * ends.size() + i]);
      EXPECT_EQ(ends[i].far->received[2 * round + 1].header.request_id, 7U);
    }
    const NetCounters& counters = ends[i].near->counters;
    moves += counters.moves.value();  // the loop's thread moves some, too, and maybe all of one connection
    moved_bytes += counters.moved_bytes.value();
    EXPECT_LE(counters.moved_bytes.value(), counters.bytes_out.value());
    EXPECT_GE(ends[i].near->drained, 1);
  }
  EXPECT_GT(moves, 0U);
  EXPECT_GT(moved_bytes, 0U);
}

TEST_F(MoversTest, ABodyIsDoneWithWhenTheMoverIs) {
  start(1);
  End end = open(true);
  End other = open(true);
  const CallGate::Closed closed(gate_);
  send(end, 1, Movers::kBytesMin);
  end.near->connection->send({.head = wire::frame({.request_id = 2}, wire::Ping{}), .body = {}, .on_done = {}});
  end.near->connection->flush();
  gate_.wait_until_within(1);
  // The loop goes on meanwhile: it answers others, and receives from this one.
  other.far->send(wire::frame({.request_id = 3}, wire::Ping{}));
  end.far->send(wire::frame({.request_id = 4}, wire::Ping{}));
  ASSERT_TRUE(until([&] { return other.near->received.size() == 1 && end.near->received.size() == 1; }));
  EXPECT_TRUE(end.far->received.empty());
  EXPECT_EQ(done_[0], 0);
  gate_.set(true);
  ASSERT_TRUE(until([&] { return end.far->received.size() == 2; }));
  EXPECT_TRUE(end.far->received[0].payload == bodies_[0]);
  expect_all_done();
  EXPECT_EQ(end.near->connection->queued_bytes(), 0U);
}

TEST_F(MoversTest, CloseWaitsForTheCallAndGivesAllBodiesBack) {
  start(1);
  End end = open(false);
  const CallGate::Closed closed(gate_);
  send(end, 1);
  send(end, 2);
  end.near->connection->flush();
  expect_waits([&] { end.near->connection->close(Error{Code::kCancelled, 0, "test"}); });
  EXPECT_EQ(done_, (std::deque<int>{1, 1}));
  EXPECT_FALSE(end.near->closed);
  ASSERT_TRUE(until([&] { return end.near->closed.has_value(); }));
  EXPECT_EQ(done_, (std::deque<int>{1, 1}));
}

TEST_F(MoversTest, DestructionWaitsForTheCallToo) {
  start(1);
  End end = open(false);
  const CallGate::Closed closed(gate_);
  send(end, 1);
  end.near->connection->flush();
  expect_waits([&] { end.near->connection.reset(); });
  EXPECT_EQ(done_[0], 1);
  loop_->run_once(Duration::zero());
  movers_.reset();
  loop_->run_once(Duration::zero());
}

TEST_F(MoversTest, WhatNoThreadHasBegunIsTakenBackAtOnce) {
  start(1);
  BodyTurns turns(*loop_);
  End busy = open(true), waits = open(false, {.turns = &turns}), in_line = open(false, {.turns = &turns});
  const CallGate::Closed closed(gate_);
  for (std::uint64_t id = 1; End* const end : {&busy, &waits, &in_line}) {
    send(*end, id++);
    end->near->connection->flush();
  }
  gate_.wait_until_within(1);
  ASSERT_TRUE(until([&] { return in_line.near->counters.bytes_out.value() > 0; }));
  for (End* const end : {&waits, &in_line}) end->near->connection->close(Error{Code::kCancelled, 0, "test"});
  EXPECT_EQ(done_, (std::deque<int>{0, 1, 1}));
  EXPECT_EQ(waits.near->counters.moves.value(), 1U);
  EXPECT_EQ(waits.near->counters.bytes_out.value(), 0U) << "the one thread is elsewhere";
  gate_.set(true);
  ASSERT_TRUE(until([&] { return busy.far->received.size() == 1; }));
  expect_all_done();
}

TEST_F(MoversTest, AnAbandonedBodyIsNotReadAnyMoreAndGoesOnAsZeros) {
  start(1);
  End end = open(true);
  const CallGate::Closed closed(gate_);
  const SendId first = send(end, 1);
  send(end, 2);
  end.near->connection->flush();
  expect_waits([&] { EXPECT_FALSE(end.near->connection->abandon(first)); });
  EXPECT_EQ(done_, (std::deque<int>{1, 0}));
  std::ranges::fill(bodies_[0], std::byte{0xEE});  // the owner's again
  ASSERT_TRUE(until([&] { return end.far->received.size() == 2; }));
  const auto& payload = end.far->received[0].payload;
  const auto original = make_bytes(kBig, 1);
  const auto differs = std::ranges::mismatch(payload, original).in1;
  EXPECT_GT(differs - payload.begin(), 0);
  EXPECT_LT(differs - payload.begin(), static_cast<std::ptrdiff_t>(Movers::kMoveBytes)) << "recalled within its list";
  EXPECT_TRUE(std::all_of(differs, payload.end(), [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_TRUE(end.far->received[1].payload == bodies_[1]);
  expect_all_done();
}

TEST_F(MoversTest, WhatIsFlushedWhileABodyIsAbandonedWaits) {
  start(1);
  End end = open(true);
  const auto small = make_bytes(10, 3);
  const CallGate::Closed closed(gate_);
  end.near->connection->send({.head = mover_frame(9, small.size()), .body = {Bytes(small)}, .on_done = [&] {
                                end.near->connection->flush();
                              }});
  const SendId big = send(end, 1);
  end.near->connection->flush();
  expect_waits([&] { EXPECT_FALSE(end.near->connection->abandon(big)); });
  std::ranges::fill(bodies_[0], std::byte{0xEE});
  ASSERT_TRUE(until([&] { return end.far->received.size() == 2; }));
  const auto& payload = end.far->received[1].payload;
  const auto original = make_bytes(kBig, 1);
  const auto differs = std::ranges::mismatch(payload, original).in1;
  EXPECT_LE(differs - payload.begin(), static_cast<std::ptrdiff_t>(Movers::kCallBytes)) << "one call was under way";
  EXPECT_TRUE(std::all_of(differs, payload.end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST_F(MoversTest, WhatAMoverHasIsNotWithdrawn) {
  start(1);
  End end = open(true);
  const CallGate::Closed closed(gate_);
  const SendId first = send(end, 1);
  const SendId second = send(end, 2);
  end.near->connection->flush();
  EXPECT_FALSE(end.near->connection->withdraw(first));
  EXPECT_TRUE(end.near->connection->withdraw(second)) << "beyond its list";
  EXPECT_EQ(done_, (std::deque<int>{0, 1}));
  gate_.set(true);
  ASSERT_TRUE(until([&] { return end.far->received.size() == 1; }));
  EXPECT_TRUE(end.far->received[0].payload == bodies_[0]);
  expect_all_done();
}

TEST_F(MoversTest, APeerThatStopsReadingIsWaitedForByTheLoop) {
  constexpr std::size_t kMuch = std::size_t{24} << 20;  // no socket takes that
  start(1);
  End end = open(false);
  send(end, 1, kMuch);
  end.near->connection->flush();
  ASSERT_TRUE(until([&] { return end.near->connection->stuck_since() != kNever; }));
  EXPECT_EQ(done_[0], 0);
  std::size_t got = 0;
  std::vector<std::byte> stream;
  wire::Buffer sink(std::size_t{1} << 20);
  ASSERT_TRUE(until([&] {
    const ssize_t n = ::recv(end.socket.get(), sink.data(), sink.size(), MSG_DONTWAIT);
    if (n > 0) stream.insert(stream.end(), sink.begin(), sink.begin() + n);
    got = stream.size();
    return got >= kMuch && done_[0] == 1;
  }));
  EXPECT_TRUE(std::equal(bodies_[0].rbegin(), bodies_[0].rend(), stream.rbegin()));
  EXPECT_GT(end.near->counters.moves.value(), 1U);
}

TEST_F(MoversTest, APeerThatDoesNotReadIsCut) {
  start(1);
  End end = open(false, {.stall_limit = Millis(20)});
  send(end, 1, std::size_t{24} << 20);
  end.near->connection->flush();
  ASSERT_TRUE(until([&] { return end.near->closed.has_value(); }));
  EXPECT_EQ(end.near->closed->code, Code::kTimeout);
  EXPECT_EQ(done_[0], 1);
}

TEST_F(MoversTest, AFarewellWaitsForWhatAMoverHas) {
  start(1);
  End end = open(true);
  const CallGate::Closed closed(gate_);
  send(end, 1);
  end.near->connection->flush();
  end.near->connection->close_after_flush(Error{Code::kUnavailable, 0, "that is all"});
  EXPECT_FALSE(end.near->connection->closed());
  gate_.set(true);
  ASSERT_TRUE(until([&] { return end.near->closed && end.far->closed; }));
  ASSERT_EQ(end.far->received.size(), 1U);
  EXPECT_TRUE(end.far->received[0].payload == bodies_[0]);
}

TEST_F(MoversTest, APeerThatGoesEndsTheConnectionOnce) {
  start(1);
  End end = open(false);
  const CallGate::Closed closed(gate_);
  send(end, 1, std::size_t{24} << 20);
  end.near->connection->flush();
  gate_.wait_until_within(1);
  end.socket.reset();
  gate_.set(true);
  ASSERT_TRUE(until([&] { return end.near->closed.has_value(); }));
  EXPECT_EQ(end.near->closed->code, Code::kUnavailable);
  EXPECT_EQ(done_[0], 1);
}

// An error that only the mover sees.
TEST_F(MoversTest, WhatAMoverFailsWithEndsTheConnection) {
  auto movers = Movers::start(*loop_, 1, [](int, std::span<const iovec>) -> Result<std::size_t> {
    return fail(Code::kIo, "send to the peer", EIO);
  });
  movers_ = std::move(*movers);
  End end = open(false);
  send(end, 1);
  end.near->connection->flush();
  ASSERT_TRUE(until([&] { return end.near->closed.has_value(); }));
  EXPECT_EQ(end.near->closed->code, Code::kIo);
  EXPECT_EQ(done_[0], 1);
}

TEST_F(MoversTest, TheLoopMovesBodiesWhereAllThreadsAreBusy) {
  start(1);
  BodyTurns turns(*loop_);
  End first = open(true, {.turns = &turns}), second = open(true, {.turns = &turns}),
      third = open(true, {.turns = &turns});
  talk({&first, &second, &third});
  const CallGate::Closed closed(gate_);
  for (std::uint64_t id = 1; End* const end : {&first, &second, &third}) {
    send(*end, id++);
    end->near->connection->flush();
  }
  ASSERT_TRUE(until([&] { return third.far->received.size() == 1; }));
  EXPECT_TRUE(third.far->received[0].payload == bodies_[2]);
  EXPECT_EQ(done_, (std::deque<int>{0, 0, 1})) << "each thread has two";
  EXPECT_EQ(third.near->counters.moves.value(), 0U);
  gate_.set(true);
  ASSERT_TRUE(until([&] { return first.far->received.size() + second.far->received.size() == 2; }));
  expect_all_done();
}

TEST_F(MoversTest, WhoIsAloneHasTheLoopForItself) {
  start(1);
  BodyTurns turns(*loop_);
  End end = open(true, {.turns = &turns}), other = open(true, {.turns = &turns});
  send(end, 1);
  end.near->connection->flush();
  ASSERT_TRUE(until([&] { return end.far->received.size() == 1; }));
  EXPECT_EQ(end.near->counters.moves.value(), 0U);
  talk({&other, &end});
  send(end, 2);
  end.near->connection->flush();
  ASSERT_TRUE(until([&] { return end.far->received.size() == 2; }));
  EXPECT_GT(end.near->counters.moves.value(), 0U) << "somebody may ask for something small";
}

TEST_F(MoversTest, NeitherSmallBodiesNorShapedOnesGoToThem) {
  start(1);
  End small = open(true);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    send(small, id, Movers::kBytesMin - 1);
    small.near->connection->flush();
    ASSERT_TRUE(until([&] { return small.far->received.size() == id; }));
  }
  EXPECT_EQ(small.near->counters.moves.value(), 0U);
  Shaper shaper(*loop_, std::uint64_t{1} << 30);
  End shaped = open(true, {.shaper = &shaper});
  send(shaped, 1);
  shaped.near->connection->flush();
  ASSERT_TRUE(until([&] { return shaped.far->received.size() == 1; }));
  EXPECT_EQ(shaped.near->counters.moves.value(), 0U);
}

// Users by themselves, on one thread: each has three lists to hand over.
class Lister final : public Movers::User {
 public:
  Lister(Movers& movers, int name) : movers_(movers), name_(name) {}
  ~Lister() override { movers_.leave(*this); }
  void go_on() {
    if (left == 0) return;
    const std::span<iovec> pieces = movers_.ask(*this);
    if (pieces.empty()) return;
    pieces[0] = {&byte_, 1};
    --left;
    movers_.move(*this, name_, 1);
  }
  using Movers::User::set_share;
  int left = 3;
  int moved = 0;

 private:
  void on_mover() override { go_on(); }
  void on_moved(const Movers::Moved& result) override {
    EXPECT_EQ(result.bytes, 1U);
    ++moved;
    go_on();
  }
  Movers& movers_;
  const int name_;
  std::byte byte_{};
};

TEST_F(MoversTest, WhoHasMoreGoesToTheEndOfTheLine) {
  std::string order;
  auto movers = Movers::start(*loop_, 1, [&order](int name, std::span<const iovec>) -> Result<std::size_t> {
    order += static_cast<char>(name);
    return 1;
  });
  movers_ = std::move(*movers);
  std::deque<Lister> users;
  for (const char name : {'a', 'b', 'c', 'd'}) users.emplace_back(*movers_, name);
  for (Lister& user : users) user.go_on();
  ASSERT_TRUE(until([&] { return std::ranges::all_of(users, [](const Lister& u) { return u.moved == 3; }); }));
  EXPECT_EQ(order, "abcdabcdabcd");
}

// Ten connections whose peers read; the last one is of another share.
TEST_F(MoversTest, AConnectionsBodiesAreOfItsShare) {
  constexpr std::size_t kConnections = 10;
  constexpr std::uint64_t kEach = 6;
  const int one = 1, other = 2;
  std::mutex mutex;
  std::map<int, std::size_t> moved;  // by socket
  auto movers = Movers::start(*loop_, 1, [&](int socket, std::span<const iovec> pieces) {
    auto sent = send_to_socket(socket, pieces);
    const std::lock_guard lock(mutex);
    moved[socket] += sent.value_or(0);
    return sent;
  });
  movers_ = std::move(*movers);
  BodyTurns turns(*loop_);
  std::vector<End> ends;
  for (std::size_t i = 0; i < kConnections; ++i) {
    ends.push_back(open(true, {.turns = &turns}));
    ends[i].near->connection->set_share(i + 1 < kConnections ? &one : &other);
  }
  const int last = ends.back().near->connection->stream().fd();
  for (std::uint64_t id = 1; id <= kEach; ++id)
    for (End& end : ends) send(end, id, std::size_t{1} << 20);
  for (End& end : ends) end.near->connection->flush();
  ASSERT_TRUE(until([&] { return ends.back().far->received.size() == kEach; }));
  {
    const std::lock_guard lock(mutex);
    std::size_t all = 0;
    for (const auto& [socket, bytes] : moved) all += bytes;
    EXPECT_GE(4 * moved[last], all) << "half of it, nearly";
  }
  ends.clear();
}

TEST_F(MoversTest, SharesHaveListsByTurns) {
  constexpr int kLists = 12;
  const int one = 1, other = 2;
  std::string order;
  auto movers = Movers::start(*loop_, 1, [&order](int name, std::span<const iovec>) -> Result<std::size_t> {
    order += static_cast<char>(name);
    return 1;
  });
  movers_ = std::move(*movers);
  std::deque<Lister> users;
  for (const char name : {'a', 'b', 'c', 'x'}) {
    Lister& user = users.emplace_back(*movers_, name);
    user.set_share(name == 'x' ? &other : &one);
    user.left = kLists;
  }
  for (Lister& user : users) user.go_on();
  ASSERT_TRUE(until([&] { return std::ranges::all_of(users, [](const Lister& u) { return u.moved == kLists; }); }));
  const std::string_view together(order.data(), order.rfind('x') + 1);
  EXPECT_NEAR(static_cast<double>(together.size()), 2 * kLists, 3) << order;
  EXPECT_EQ(order.find("xx"), std::string::npos) << order;
}

}  // namespace
}  // namespace kvd::net
