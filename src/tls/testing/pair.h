// Pair: a depot's and a client's end of one encrypted stream for tests, each of them above a stream of the test's
// choice, on the test's loop. Keeps what came and how it ended.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "tls/stream.h"

namespace kvd::tls {

// A user of a stream as a connection is: reads all that comes, sends what waits, closes at the end.
class End {
 public:
  End(io::Loop& loop, std::unique_ptr<io::Stream> stream) : stream_(std::move(stream)) {
    EXPECT_TRUE(stream_->start(loop, [this](std::uint32_t ready) { on_ready(ready); }).has_value());
  }

  void send(std::vector<std::byte> bytes) {
    waiting.insert(waiting.end(), bytes.begin(), bytes.end());
    push();
  }
  [[nodiscard]] TlsStream& tls() { return dynamic_cast<TlsStream&>(*stream_); }
  [[nodiscard]] io::Stream& stream() { return *stream_; }

  std::vector<std::byte> got;
  std::vector<std::byte> waiting;
  std::optional<Error> why;  // it has ended with this
  bool ended = false;        // the peer sends no more
  std::size_t place_bytes = std::size_t{64} << 10;

 private:
  void on_ready(std::uint32_t) {
    pull();
    push();
  }
  void pull() {
    while (!why && !ended) {
      std::vector<std::byte> bytes(place_bytes);
      const iovec place{bytes.data(), bytes.size()};
      const auto received = stream_->receive({&place, 1}, nullptr);
      if (!received && received.error().code == Code::kBusy) return;
      if (!received) return end(received.error());
      if (*received == 0) ended = true;
      got.insert(got.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(*received));
      if (*received < bytes.size()) return;  // no more has come; on_ready comes again, also for an end
    }
  }
  void push() {
    while (!why && !waiting.empty()) {
      const iovec piece{waiting.data(), waiting.size()};
      const auto sent = stream_->send({&piece, 1}, -1);
      if (!sent && sent.error().code != Code::kBusy) return end(sent.error());
      if (!sent) break;
      waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(*sent));
    }
    std::uint32_t interest = waiting.empty() ? io::Watch::kNone : io::Watch::kWrite;
    if (!ended) interest |= io::Watch::kRead;
    EXPECT_TRUE(why || stream_->want(interest).has_value());
  }
  void end(const Error& error) {
    why = error;
    stream_->close();
  }

  std::unique_ptr<io::Stream> stream_;
};

}  // namespace kvd::tls
