// ByteConnection: a stream for protocols that frame themselves (RESP): receives into places that its handler
// names, sends queued pieces of memory. What Connection is to the native protocol; nothing here knows a format.
//
// Belongs to one loop and is used on its thread only; nothing here blocks. Before every system call the handler is
// asked where bytes go, and told at once how many came, so payload lands where it belongs. Turns, stalls and the end
// are as in connection.h: a millisecond a turn; a peer that owes bytes (ByteHandler::within) or does not read for
// options.stall_limit, or is slower than options.progress_bytes_min in that time, is cut; on_closed() comes once, from
// the loop, and may destroy the connection. Bounds: the handler holds (hold()) while more than options.queue_bytes_high
// wait to be sent; see congested(). What an encrypted stream holds counts as in connection.h.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "io/loop.h"
#include "io/stream.h"
#include "net/connection.h"
#include "net/counters.h"
#include "net/progress.h"
#include "net/slices.h"

namespace kvd::net {

class ByteHandler {
 public:
  virtual ~ByteHandler() = default;
  // Where the next bytes go, in order; at least one place. Used for the next system call only.
  virtual std::size_t places(std::span<iovec> out) = 0;
  // So many bytes have come there. An error ends the connection with it.
  virtual Status landed(std::size_t bytes) = 0;
  // The peer has begun something that it has not finished.
  [[nodiscard]] virtual bool within() const = 0;
  // How many of these it has finished.
  [[nodiscard]] virtual std::uint64_t finished() const = 0;
  // congested() was true and is no more, and half of it has gone out.
  virtual void on_drained() = 0;
  virtual void on_closed(const Error& why) = 0;
};

class ByteConnection final : private BodyTurns::User {
 public:
  struct Options {
    std::size_t queue_bytes_high = std::size_t{8} << 20;
    // Of all connections, in heads that wait: beyond it each may have 64 KiB.
    std::size_t owned_bytes_all_max = std::size_t{64} << 20;
    Duration stall_limit = std::chrono::seconds(30);  // Duration::max() = never
    // What moves in a stall limit while the peer is within something, or while the queue is not empty.
    std::uint64_t progress_bytes_min = 1;
    BodyTurns* turns = nullptr;     // as of a Connection
    SliceLine* messages = nullptr;  // the same
  };

  ByteConnection(io::Loop& loop, ByteHandler& handler, NetCounters& counters, std::unique_ptr<io::Stream> stream,
                 const Options& options);
  ~ByteConnection() override;
  ByteConnection(const ByteConnection&) = delete;
  ByteConnection& operator=(const ByteConnection&) = delete;

  Status start();
  // Queues; flush() hands to the kernel, and the rest follows by itself. A message's body stays unchanged until its
  // on_done, which comes exactly once. Descriptors are not sent.
  void send(Outgoing message);
  void flush();
  // Who is told so is told when it is over: on_drained().
  [[nodiscard]] bool congested() noexcept {
    if (is_congested()) was_congested_ = true;
    return is_congested();
  }
  [[nodiscard]] std::size_t queued_bytes() const noexcept { return queued_bytes_ + stream_->unsent(); }
  // As of a Connection.
  [[nodiscard]] std::uint64_t taken_bytes() const noexcept {
    return sent_bytes_ - std::min<std::uint64_t>(sent_bytes_, stream_->untaken());
  }
  // Since when the peer has taken nothing of what waits for it; kNever when it is not waited for.
  [[nodiscard]] Time stuck_since() const noexcept { return full_ && !queue_.empty() ? last_sent_ : kNever; }
  // Receives nothing from now on until resume(); also from inside landed().
  void hold() noexcept { held_ = true; }
  void set_share(const void* share) noexcept;  // as of a Connection
  void resume();
  [[nodiscard]] bool held() const noexcept { return held_; }

  // What the stream says of the peer; not to be moved through.
  [[nodiscard]] io::Stream& stream() const noexcept { return *stream_; }

  void close(const Error& why);
  void close_after_flush(const Error& why);
  // Neither closed nor about to be.
  [[nodiscard]] bool open() const noexcept { return state_ == State::kOpen; }

 private:
  enum class State : std::uint8_t { kOpen, kFlushing, kClosed };
  struct Queued {
    Outgoing message;
    std::size_t piece = 0;  // next to send: 0 = head, i = body[i - 1]
    std::size_t offset = 0;
    [[nodiscard]] Bytes at(std::size_t i) const noexcept { return i == 0 ? Bytes(message.head) : message.body[i - 1]; }
    [[nodiscard]] std::size_t pieces() const noexcept { return 1 + message.body.size(); }
  };

  void on_ready(std::uint32_t ready);
  void on_body_turn() override;
  [[nodiscard]] std::size_t untaken_bytes() const override { return reads_wait_ ? 0 : stream_->untaken(); }
  [[nodiscard]] std::size_t body_slice();
  void read_some();
  std::size_t receive();
  bool send_some(std::size_t& budget);
  void advance(std::size_t bytes);
  void drop_queue();
  void update_interest();
  [[nodiscard]] bool is_congested() const noexcept;
  [[nodiscard]] bool is_crowded() const noexcept {
    return counters_.owned_bytes.value() > options_.owned_bytes_all_max;
  }
  [[nodiscard]] bool awaits_bytes() const { return !held_ && handler_.within(); }
  [[nodiscard]] bool waits_for_reader() const noexcept { return full_ || stream_->unsent() > 0; }
  [[nodiscard]] std::uint64_t passed_bytes() const noexcept;
  void count_unsent();
  void watch_progress();
  void on_stall_timer();
  void on_closed_timer();

  io::Loop& loop_;
  ByteHandler& handler_;
  NetCounters& counters_;
  const Options options_;
  const std::unique_ptr<io::Stream> stream_;
  io::Timer stall_timer_;
  io::Timer closed_timer_;
  io::Timer resume_timer_;
  std::optional<SliceLine::User> more_;  // as of a Connection
  State state_ = State::kOpen;
  Error why_closed_{};
  bool told_closed_ = false;
  bool held_ = false;
  bool flushing_ = false;
  bool full_ = false;
  bool was_congested_ = false;
  bool reads_wait_ = false;  // for a turn of bodies
  std::deque<Queued> queue_;
  std::size_t queued_bytes_ = 0;
  std::size_t owned_bytes_ = 0;  // of these, in heads
  std::size_t unsent_ = 0;       // of the stream, as it is counted in the counters
  std::uint64_t received_bytes_ = 0;
  std::uint64_t sent_bytes_ = 0;
  Progress receiving_, sending_;
  std::uint64_t farewell_passed_ = 0;  // passed_bytes() when the last second of a farewell began
  Time last_received_{};
  Time last_sent_{};
};

}  // namespace kvd::net
