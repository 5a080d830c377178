// RoomyStream: a stream that takes all that is sent, brings what a test feeds it, and writes down in a record that
// several share who moved how many bytes: so that a test sees the order in which connections have their turns. Each
// call may take time of a virtual clock. Readiness comes as posted work, once a turn of the loop. One that is told so
// is a stream of this host, which keeps the descriptor that came last. One thread.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "io/sim/sim_loop.h"
#include "io/stream.h"

namespace kvd::net {

// One call that moved bytes.
struct Move {
  char who = 0;
  bool out = false;
  std::size_t bytes = 0;
};

class RoomyStream final : public io::Stream {
 public:
  struct Record {
    io::SimClock& clock;
    std::vector<Move> moves;
    Duration call{};  // takes so long
  };

  RoomyStream(char who, Record& record) : who_(who), record_(record) {}
  ~RoomyStream() override { *alive_ = false; }

  void feed(Bytes bytes) {
    coming_.insert(coming_.end(), bytes.begin(), bytes.end());
    tell();
  }
  [[nodiscard]] const std::vector<std::byte>& taken() const noexcept { return taken_; }

  Status start(io::Loop& loop, io::Watch::OnReady on_ready) override {
    loop_ = &loop;
    on_ready_ = std::move(on_ready);
    return want(io::Watch::kRead);
  }
  Status want(std::uint32_t interest) override {
    interest_ = interest;
    tell();
    return {};
  }
  Result<std::size_t> receive(std::span<const iovec> places, io::PrivateFd*) override {
    std::size_t got = 0;
    for (const iovec& place : places) {
      const std::size_t n = std::min(place.iov_len, coming_.size() - at_);
      std::memcpy(place.iov_base, coming_.data() + at_, n);
      at_ += n;
      got += n;
    }
    if (got == 0) return fail(Code::kBusy, "nothing has come");
    note(false, got);
    return got;
  }
  Result<std::size_t> send(std::span<const iovec> pieces, int descriptor) override {
    if (descriptor >= 0) given = io::PrivateFd(io::UniqueFd(::dup(descriptor)));
    std::size_t sent = 0;
    for (const iovec& piece : pieces) {
      const auto* const bytes = static_cast<const std::byte*>(piece.iov_base);
      taken_.insert(taken_.end(), bytes, bytes + piece.iov_len);
      sent += piece.iov_len;
    }
    note(true, sent);
    return sent;
  }
  void end_sending() override {}
  void close() override {
    *alive_ = false;
    interest_ = io::Watch::kNone;
  }
  bool set_read_mark(std::size_t) override { return false; }
  [[nodiscard]] bool is_local() const noexcept override { return local; }
  [[nodiscard]] int fd() const noexcept override { return -1; }
  [[nodiscard]] std::size_t untaken() const noexcept override { return waiting; }

  std::size_t waiting = 0;  // of what was sent, for its peer
  bool local = false;
  io::PrivateFd given;

 private:
  void note(bool out, std::size_t bytes) {
    record_.moves.push_back({who_, out, bytes});
    record_.clock.advance_to(record_.clock.now() + record_.call);
  }
  [[nodiscard]] std::uint32_t ready() const noexcept {
    return interest_ & (io::Watch::kWrite | (at_ < coming_.size() ? io::Watch::kRead : 0U));
  }
  void tell() {
    if (loop_ == nullptr || ready() == 0 || std::exchange(told_, true)) return;
    loop_->post([this, alive = alive_] {
      if (!*alive) return;
      told_ = false;
      if (ready() != 0) on_ready_(ready());
      if (*alive) tell();
    });
  }

  const char who_;
  Record& record_;
  io::Loop* loop_ = nullptr;
  io::Watch::OnReady on_ready_;
  std::uint32_t interest_ = io::Watch::kNone;
  std::vector<std::byte> coming_, taken_;
  std::size_t at_ = 0;
  bool told_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // shared with what was posted
};

}  // namespace kvd::net
