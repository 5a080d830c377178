// Tests of SimNet: what it promises of a stream, and each of its faults by itself.
#include "io/sim/sim_net.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <optional>

#include <gtest/gtest.h>

#include "io/sim/sim_loop.h"

namespace kvd::io {
namespace {

using std::chrono::seconds;

// One end: keeps what it receives, while it is told to read.
struct NetEnd {
  explicit NetEnd(Loop& owner, std::unique_ptr<Stream> made) : stream(std::move(made)) {
    EXPECT_TRUE(stream->start(owner, [this](std::uint32_t ready) { on_ready(ready); }).has_value());
  }
  void on_ready(std::uint32_t ready) {
    ++told;
    writable = writable || (ready & Watch::kWrite) != 0;
    if ((ready & Watch::kWrite) != 0) static_cast<void>(stream->want(Watch::kRead));
    if ((ready & Watch::kRead) != 0) read();
  }
  void read() {
    std::vector<std::byte> bytes(5'000);
    const std::vector<iovec> places{{bytes.data(), 1'000}, {bytes.data() + 1'000, 4'000}};
    const auto n = stream->receive(places, nullptr);
    if (n && *n > 0) got.insert(got.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(*n));
    if (n && *n == 0) ended = true;
    if (!n && n.error().code != Code::kBusy) error = n.error();
    if (ended || error) static_cast<void>(stream->want(Watch::kNone));
  }
  Result<std::size_t> send(Bytes bytes) const {
    const std::vector<iovec> pieces{{const_cast<std::byte*>(bytes.data()), bytes.size()}};
    return stream->send(pieces, -1);
  }

  std::unique_ptr<Stream> stream;
  std::vector<std::byte> got;
  int told = 0;
  bool writable = false;
  bool ended = false;
  std::optional<Error> error;
};

std::vector<std::byte> pattern(std::size_t n) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

class SimNetTest : public testing::Test {
 protected:
  void make(const SimNetModel& model = {}, std::uint64_t seed = 1) {
    near_.reset();
    far_.reset();
    others_.clear();
    net_ = std::make_unique<SimNet>(loop_, seed, model);
    net_->listen("depot", [this](std::unique_ptr<Stream> stream) {
      auto end = std::make_unique<NetEnd>(loop_, std::move(stream));
      if (far_ == nullptr) {
        far_ = std::move(end);
      } else {
        others_.push_back(std::move(end));
      }
    });
  }
  // Connects near_ to far_; false when that was refused or never answered.
  bool connect() {
    std::optional<bool> connected;
    net_->connect("depot", [&](Result<std::unique_ptr<Stream>> stream) {
      connected = stream.has_value();
      if (stream) near_ = std::make_unique<NetEnd>(loop_, std::move(*stream));
    });
    EXPECT_FALSE(connected.has_value());  // never from inside
    loop_.run_until([&] { return connected.has_value(); }, seconds(5));
    return connected.value_or(false);
  }
  // Sends everything, in as many calls as it takes.
  void send_all(NetEnd& end, Bytes bytes) {
    while (!bytes.empty()) {
      const auto n = end.send(bytes);
      if (!n && n.error().code != Code::kBusy) return;
      if (n) bytes = bytes.subspan(*n);
      if (!bytes.empty()) loop_.run_for(Millis(1));
    }
  }

  SimClock clock_;
  SimLoop loop_{clock_};
  std::unique_ptr<SimNet> net_;
  std::unique_ptr<NetEnd> near_, far_;
  std::vector<std::unique_ptr<NetEnd>> others_;
};

TEST_F(SimNetTest, BytesArriveInOrderBothWaysHoweverTheyAreCut) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    make({.bytes_per_second = seed % 2 * 50'000'000, .window_bytes = 10'000, .segment_bytes_max = 1 + seed * 97}, seed);
    ASSERT_TRUE(connect());
    const auto up = pattern(100'000);
    const auto down = pattern(33'000);
    send_all(*near_, up);
    send_all(*far_, down);
    loop_.run_for(seconds(1));
    EXPECT_EQ(far_->got, up);
    EXPECT_EQ(near_->got, down);
    EXPECT_EQ(net_->counters().faults(), 0U);
  }
}

TEST_F(SimNetTest, OneSeedIsOneConversation) {
  std::vector<std::pair<Time, std::size_t>> first;
  for (int run = 0; run < 2; ++run) {
    make({}, 7);
    ASSERT_TRUE(connect());
    const Time start = loop_.now();
    send_all(*near_, pattern(200'000));
    std::vector<std::pair<Time, std::size_t>> seen;
    for (int i = 0; i < 100; ++i) {
      loop_.run_for(std::chrono::microseconds(20));
      seen.emplace_back(Time(loop_.now() - start), far_->got.size());
    }
    if (run == 0) first = seen;
    EXPECT_EQ(seen, first);
  }
}

TEST_F(SimNetTest, AFullStreamTellsOfRoom) {
  make({.window_bytes = 4'000});
  ASSERT_TRUE(connect());
  ASSERT_TRUE(far_->stream->want(Watch::kNone).has_value());
  std::size_t sent = 0;
  auto n = near_->send(pattern(4'000));
  for (; n; n = near_->send(pattern(4'000))) sent += *n;
  EXPECT_EQ(n.error().code, Code::kBusy);
  EXPECT_EQ(sent, 4'000U);
  ASSERT_TRUE(near_->stream->want(Watch::kWrite).has_value());
  loop_.run_for(seconds(1));
  EXPECT_FALSE(near_->writable);
  ASSERT_TRUE(far_->stream->want(Watch::kRead).has_value());
  loop_.run_for(seconds(1));
  EXPECT_TRUE(near_->writable);
  EXPECT_EQ(far_->got.size(), 4'000U);
}

TEST_F(SimNetTest, AReadMarkHoldsReadinessBackUntilTheEnd) {
  make();
  ASSERT_TRUE(connect());
  EXPECT_TRUE(far_->stream->set_read_mark(1'000));
  send_all(*near_, pattern(900));
  loop_.run_for(seconds(1));
  EXPECT_EQ(far_->told, 0);
  send_all(*near_, pattern(100));
  loop_.run_for(seconds(1));
  EXPECT_EQ(far_->got.size(), 1'000U);
  send_all(*near_, pattern(10));
  near_->stream->close();
  loop_.run_for(seconds(1));
  EXPECT_EQ(far_->got.size(), 1'010U);
  EXPECT_TRUE(far_->ended);
}

TEST_F(SimNetTest, EndsOfADirectionAndOfAll) {
  make();
  ASSERT_TRUE(connect());
  send_all(*near_, pattern(3'000));
  near_->stream->end_sending();
  EXPECT_EQ(near_->send(pattern(1)).error().code, Code::kUnavailable);
  loop_.run_for(seconds(1));
  EXPECT_EQ(far_->got.size(), 3'000U);
  EXPECT_TRUE(far_->ended);
  send_all(*far_, pattern(2'000));
  loop_.run_for(seconds(1));
  EXPECT_EQ(near_->got.size(), 2'000U);
  far_->stream->close();
  EXPECT_EQ(far_->send(pattern(1)).error().code, Code::kIo);
  loop_.run_for(seconds(1));
  EXPECT_TRUE(near_->ended);
  EXPECT_EQ(net_->open_links(), 1U);
  near_.reset();
  EXPECT_EQ(net_->open_links(), 0U);
}

TEST_F(SimNetTest, WhoLeavesBytesUnreadResetsTheConnection) {
  make();
  ASSERT_TRUE(connect());
  ASSERT_TRUE(far_->stream->want(Watch::kNone).has_value());
  send_all(*near_, pattern(100));
  loop_.run_for(seconds(1));
  far_.reset();
  loop_.run_for(seconds(1));
  ASSERT_TRUE(near_->error.has_value());
  EXPECT_EQ(near_->error->sys_errno, ECONNRESET);
}

TEST_F(SimNetTest, NobodyListensRefusalAndSilence) {
  make();
  net_->set_rates({.refuse = 1'000'000});
  EXPECT_FALSE(connect());
  EXPECT_EQ(net_->counters().refused, 1U);
  net_->set_rates({.ignore = 1'000'000});
  EXPECT_FALSE(connect());
  EXPECT_EQ(net_->counters().ignored, 1U);
  net_->set_rates({});
  net_->unlisten("depot");
  EXPECT_FALSE(connect());
  EXPECT_EQ(far_, nullptr);
}

TEST_F(SimNetTest, ACancelledAttemptSaysNothing) {
  make();
  bool told = false;
  const std::uint64_t attempt = net_->connect("depot", [&](const auto&) { told = true; });
  net_->cancel(attempt);
  loop_.run_for(seconds(5));
  EXPECT_FALSE(told);
  EXPECT_EQ(far_, nullptr);
}

TEST_F(SimNetTest, ACutLeavesAPartAndResetsBothEnds) {
  make();
  ASSERT_TRUE(connect());
  send_all(*near_, pattern(5'000));
  loop_.run_for(seconds(1));
  net_->set_rates({.cut = 1'000'000});
  const auto more = pattern(5'000);
  send_all(*near_, more);
  loop_.run_for(seconds(1));
  EXPECT_GE(far_->got.size(), 5'000U);
  EXPECT_LT(far_->got.size(), 10'000U);
  EXPECT_TRUE(std::equal(far_->got.begin() + 5'000, far_->got.end(), more.begin()));
  ASSERT_TRUE(far_->error && near_->error);
  EXPECT_EQ(near_->error->code, Code::kUnavailable);
  EXPECT_EQ(near_->send(more).error().code, Code::kUnavailable);
}

TEST_F(SimNetTest, SilenceIsNoticedByNobodyUntilItsLimit) {
  make({.silence_max = seconds(60)});
  ASSERT_TRUE(connect());
  net_->vanish("depot");
  send_all(*near_, pattern(100));
  far_->stream->close();
  loop_.run_for(seconds(59));
  EXPECT_FALSE(near_->error || near_->ended);
  EXPECT_TRUE(far_->got.empty());
  loop_.run_for(seconds(2));
  ASSERT_TRUE(near_->error.has_value());
  EXPECT_EQ(near_->error->sys_errno, ETIMEDOUT);
}

TEST_F(SimNetTest, AFlipIsOneBitAndAPauseKeepsTheOrder) {
  make();
  ASSERT_TRUE(connect());
  net_->set_rates({.flip = 1'000'000, .pause = 1'000'000});
  const auto sent = pattern(50);
  ASSERT_TRUE(near_->send(sent).has_value());
  net_->set_rates({});
  const auto rest = pattern(10'000);
  send_all(*near_, rest);
  loop_.run_for(seconds(3));
  const std::uint64_t flips = net_->counters().flipped;
  EXPECT_GE(flips, 1U);
  std::uint64_t bits = 0;
  ASSERT_GE(far_->got.size(), 10'000U);
  for (std::size_t i = 0; i < far_->got.size() - 10'000; ++i) {
    bits += static_cast<std::uint64_t>(std::popcount(static_cast<unsigned>(far_->got[i] ^ sent[i])));
  }
  EXPECT_EQ(bits, flips);
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), far_->got.end() - 10'000));
  EXPECT_EQ(net_->counters().paused, flips);
}

TEST_F(SimNetTest, AConnectionThatArrivesTwiceBringsItsBeginningAgainAndEnds) {
  make();
  net_->set_rates({.repeat = 1'000'000});
  ASSERT_TRUE(connect());
  net_->set_rates({});
  const auto sent = pattern(1'000);
  send_all(*near_, sent);
  loop_.run_for(seconds(10));
  ASSERT_EQ(others_.size(), 1U);
  const auto& copy = others_[0]->got;
  EXPECT_LE(copy.size(), sent.size());
  EXPECT_TRUE(std::equal(copy.begin(), copy.end(), sent.begin()));
  EXPECT_TRUE(others_[0]->ended);
  EXPECT_EQ(far_->got, sent);
}

TEST_F(SimNetTest, ConnectionsOvertakeEachOther) {
  int overtaken = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    make({.latency_max = Millis(5)}, seed);
    ASSERT_TRUE(connect());
    const auto first = std::exchange(near_, nullptr);
    const auto first_far = std::exchange(far_, nullptr);
    ASSERT_TRUE(connect());
    send_all(*first, pattern(10));
    send_all(*near_, pattern(10));
    loop_.run_until([&] { return !far_->got.empty() || !first_far->got.empty(); }, seconds(1));
    overtaken += first_far->got.empty();
  }
  EXPECT_GT(overtaken, 2);
  EXPECT_LT(overtaken, 18);
}

}  // namespace
}  // namespace kvd::io
