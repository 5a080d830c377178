// Connection: one stream (io/stream.h: a socket, or what stands for one) that carries messages of the native protocol,
// for the depot and for the client alike.
//
// It belongs to one loop and is used on its thread only; nothing here blocks. The owner is its MessageHandler, or owns
// both. Payload is never buffered here: bytes go from the stream straight to the places that the handler names, and
// from pinned memory straight to the stream.
//
// Receiving: header -> meta -> payload. For each message on_message() comes with the checked header and the meta (both
// valid until the message's end). If the message has payload, the connection then asks payload_places() *before every
// system call* for the next places, receives into them, says payload_landed(n) at once, and on_payload_end() when all
// is in. It keeps no place between two calls: a handler that stops naming a place (because its operation was cancelled)
// can be sure that no byte lands there any more. Naming no place at all discards the bytes, so framing goes on.
//
// Sending: send() queues a message; flush() hands as much as the stream takes to it, many messages and slabs in one
// call. send() itself never calls back. The body's memory must stay unchanged until the message's on_done,
// which comes exactly once: when the last byte is taken, when abandon() took the message back, or when the
// connection closed or was destroyed. Nothing is read from the body after on_done.
//
// Bounds: the read-ahead (16 KiB) and one meta (<= options.meta_bytes_max) are all that is buffered on the way in, and
// between messages nothing is; on the way out, owned bytes (headers, metas) beyond options.owned_bytes_max close the
// connection, as a peer that lets them pile up does not read. A peer that makes no progress for options.stall_limit
// while bytes wait for it, or within a message, is cut, and so is one that moves next to nothing in that time
// (options.progress_bytes_min). What an encrypted stream has taken and still holds (io::Stream::unsent()) waits, too:
// it counts in counters.owned_bytes, and where much waits for all no more than 64 KiB are handed to such a stream at
// once.
//
// Turns: a connection leaves the loop to others after 100 us of messages, headers and metas, after a millisecond of
// receiving payload or of sending, at the next message or system call, and goes on in the next turn. Those that share
// options.messages and have more than that stand in its line, and one of them goes on in a turn: however many ask
// without a pause, whoever asks now and then, and bodies, wait for one of them. Bodies of connections that share
// options.turns go in much shorter ones, unless one connection is alone (body_turns.h).
//
// Movers: where options.movers are given, the stream is a bare socket and no shaper bounds it, a batch with much of
// bodies goes to a thread of theirs as soon as one is free, unless nobody else is there (movers.h, Turns). Until it
// comes back nothing else is sent, and its messages count as begun. Whatever must not be read any more when a call here
// returns is taken back from the thread in that call: close(), destruction, and abandon() of a message that is in the
// batch. Who waits for a thread stands in the line of turns, too, so that the loop's thread moves bodies as well where
// the others have all to do.
//
// Holding: after hold() no message is taken, as if the peer were silent, until resume(): for a handler that works on
// what a message has announced and wants what follows to wait, as it would behind payload.
//
// Descriptors: a message may bring a file descriptor with it on a unix socket (Outgoing::descriptor). The receiver
// keeps the one that came last if its options say so; else they are dropped.
//
// Ending: close(), a protocol violation, an error of the stream and the peer's hang-up all end in on_closed(), called
// once, from the loop, as the last thing done with the object: the handler may destroy the connection there. Destroying
// it earlier is fine outside its callbacks; on_closed() does not come then.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "io/loop.h"
#include "io/private_fd.h"
#include "io/stream.h"
#include "net/body_turns.h"
#include "net/counters.h"
#include "net/message_memory.h"
#include "net/movers.h"
#include "net/progress.h"
#include "net/shaper.h"
#include "net/slices.h"
#include "wire/header.h"
#include "wire/message.h"

namespace kvd::net {

// What a connection tells its user. All calls come on the loop thread. A callback may call send(), abandon() and
// close(), but must not destroy the connection, except on_closed().
class MessageHandler {
 public:
  virtual ~MessageHandler() = default;

  // A message's structure has arrived; its CRC is right. `meta` is valid until the message's end. When the header
  // announces payload, the next calls are payload_places() / payload_landed() / on_payload_end(). An error ends the
  // connection with it: for what a sane peer never sends.
  virtual Status on_message(const wire::Header& header, Bytes meta) = 0;
  // The next places of payload that has not landed yet, in order; returns how many of `out` are filled (no empty
  // ones). Bytes beyond what the message still has are not used. 0 = discard; asked again before the next call.
  virtual std::size_t payload_places(std::span<iovec> out) = 0;
  // The next `bytes` bytes of the payload have landed in those places, or were discarded.
  virtual void payload_landed(std::size_t bytes) = 0;
  // All payload of the message is in. Not called for messages without payload.
  virtual Status on_payload_end() = 0;
  // The queue had reached options.queue_bytes_high (congested() was true) and has fallen to half of it.
  virtual void on_drained() {}
  // What to tell a peer whose bytes break the protocol, before the connection closes; best effort, at most 4 KiB.
  // `first_bytes` are what was seen of its message (for another protocol: of its first line).
  virtual wire::Buffer farewell(const Error& why, Bytes first_bytes) {
    static_cast<void>(why);
    static_cast<void>(first_bytes);
    return {};
  }
  // The connection has ended. kUnavailable: the peer closed it, kTimeout: it stalled, kInvalid (another protocol),
  // kStale (another version) and kCorrupt: what it sent, kNoSpace: it does not read, or what all hold of
  // messages is too much, kIo, or what close() was given.
  virtual void on_closed(const Error& why) = 0;
};

struct ConnectionOptions {
  std::size_t queue_bytes_high = std::size_t{8} << 20;  // congested() from here; two send calls' worth
  // Headers and metas queued. Beyond it no message is taken until half of them have gone out: requests that come faster
  // than their replies are read wait. What is queued beyond it all the same, for other reasons: cut.
  std::size_t owned_bytes_max = std::size_t{16} << 20;
  // Of all connections that share the counters, with what their streams hold. Beyond it each may queue 64 KiB.
  std::size_t owned_bytes_all_max = std::size_t{64} << 20;
  std::size_t meta_bytes_max = wire::kMetaBytesMax;  // a longer meta ends the connection
  Duration stall_limit = std::chrono::seconds(30);   // Duration::max() = never
  // What moves in a stall limit while one message comes in, or while the queue is not empty; a peer that is slower is
  // as good as stalled. Waiting for the shaper does not count.
  std::uint64_t progress_bytes_min = 1;
  Shaper* shaper = nullptr;       // borrowed: bounds the rate of bodies sent; may be null
  BodyTurns* turns = nullptr;     // borrowed: whose bodies move now, unless a shaper says so; null = all of them
  SliceLine* messages = nullptr;  // borrowed: who goes on with messages, of those who have many; null = all of them
  Movers* movers = nullptr;       // borrowed: threads that send bodies (see Movers above); null = there are none
  MessageMemory* message_memory = nullptr;  // borrowed: bounds what has come of messages, of all; null = nothing does
  bool takes_descriptors = false;           // see take_descriptor()
};

// A message on its way out.
struct Outgoing {
  wire::Buffer head;        // header and meta, from wire::frame()
  std::vector<Bytes> body;  // payload, in order; memory of the sender, unchanged until on_done
  io::Callback on_done;     // may be empty; may call send() and flush() of the same connection
  int descriptor = -1;      // goes along with the first byte; the sender's, open until on_done. Unix sockets only
};

using SendId = std::uint64_t;  // names a queued message; never 0, never reused on a connection

class Connection final : private ShaperUser, private BodyTurns::User, private Movers::User {
 public:
  // start() begins to read.
  Connection(io::Loop& loop, MessageHandler& handler, NetCounters& counters, std::unique_ptr<io::Stream> stream,
             const ConnectionOptions& options);
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // kIo when the loop cannot watch the stream.
  Status start();

  // Queues a message. Ignored (with its on_done called from the loop) after close. Never calls back.
  SendId send(Outgoing message);
  // Hands queued bytes to the stream until it is full or the queue empty; the rest follows by itself. May call
  // on_done of messages and on_drained(). Called by itself after every batch of on_message().
  void flush();
  // Takes back message `id` if its first byte has not been sent: it leaves no trace, on_done is called inside. False
  // when it is partly or wholly sent, or a mover has it.
  bool withdraw(SendId id);
  // The same, but of a message that is partly sent the rest of the body goes out as zeros, which fail verification at
  // the peer (returns false). When it returns the body is not read any more and on_done was called; so may have been
  // those of messages before it.
  bool abandon(SendId id);

  // Bytes queued and not yet in the kernel: at least options.queue_bytes_high, or half of options.owned_bytes_max of
  // heads = stop producing, wait for on_drained().
  [[nodiscard]] bool congested() const noexcept {
    return queued_bytes_ >= options_.queue_bytes_high || owned_bytes_ >= options_.owned_bytes_max / 2;
  }
  [[nodiscard]] std::size_t queued_bytes() const noexcept { return queued_bytes_ + stream_->unsent(); }
  // What the peer's host has taken so far, as near as that is known. A system call.
  [[nodiscard]] std::uint64_t taken_bytes() const noexcept {
    return sent_bytes_ - std::min<std::uint64_t>(sent_bytes_, stream_->untaken());
  }
  // Since when the peer has taken nothing of what waits for it; kNever when it is not waited for.
  [[nodiscard]] Time stuck_since() const noexcept { return full_ && !queue_.empty() ? last_sent_ : kNever; }
  // Memory held for messages on their way in; none while nothing comes.
  [[nodiscard]] std::size_t inbound_bytes_held() const noexcept;

  // The longest meta taken from now on (a depot allows little before HELLO).
  void set_meta_bytes_max(std::size_t bytes) noexcept { options_.meta_bytes_max = bytes; }
  // Whose connection it is: equal ones share their turns (share_lines.h). Not followed.
  void set_share(const void* share) noexcept;

  // Takes no message from now on, not even those that have arrived, until resume(). From inside on_message() or
  // on_payload_end(), or from the loop. The peer's hang-up is not noticed meanwhile. Idempotent.
  void hold();
  void resume();
  // The descriptor that came last and was not taken yet; none unless options.takes_descriptors.
  [[nodiscard]] io::PrivateFd take_descriptor() noexcept { return std::move(descriptor_); }
  // The peer is on this host, and descriptors can be sent: a unix socket.
  [[nodiscard]] bool is_local() const noexcept { return stream_->is_local(); }

  // What the stream says of the peer; not to be moved through.
  [[nodiscard]] io::Stream& stream() const noexcept { return *stream_; }

  // Ends the connection now: nothing lands or is read after it returns. Every queued on_done is called inside;
  // on_closed(why) follows from the loop. Idempotent.
  void close(const Error& why);
  // The same after what is queued has been sent, for which the peer has a second, and another one whenever it has taken
  // 32 KiB in the last; reads nothing more.
  void close_after_flush(const Error& why);
  [[nodiscard]] bool closed() const noexcept { return state_ == State::kClosed; }

  // When the last bytes came in, or were about to; when it was resumed.
  [[nodiscard]] Time last_received() const noexcept { return last_received_; }
  // When the last byte went to the kernel.
  [[nodiscard]] Time last_sent() const noexcept { return last_sent_; }

 private:
  enum class State : std::uint8_t { kOpen, kFlushing, kClosed };
  enum class Part : std::uint8_t { kHeader, kMeta, kPayload };
  struct Queued {
    SendId id = 0;
    Outgoing message;
    std::size_t piece = 0;   // next to send: 0 = head, i = body[i - 1]
    std::size_t offset = 0;  // inside that piece
    [[nodiscard]] bool started() const noexcept { return piece != 0 || offset != 0; }
    [[nodiscard]] Bytes at(std::size_t i) const noexcept { return i == 0 ? Bytes(message.head) : message.body[i - 1]; }
    [[nodiscard]] std::size_t pieces() const noexcept { return 1 + message.body.size(); }
  };
  // What one system call is about to send.
  struct Batch {
    std::size_t pieces = 0;
    std::size_t bytes = 0;
    std::size_t body_bytes = 0;
    SendId last = 0;  // message
  };

  void on_ready(std::uint32_t ready);
  void on_tokens(std::size_t bytes) override;
  void on_body_turn() override;
  [[nodiscard]] std::size_t untaken_bytes() const override { return reads_wait_ ? 0 : stream_->untaken(); }
  void on_mover() override { flush(); }
  void on_moved(const Movers::Moved& moved) override;

  // connection_read.cc
  void read_some();
  void go_on_later();
  void wait_for_step(bool flows);
  std::size_t receive(Time now);
  [[nodiscard]] bool awaits_turn();
  std::size_t gather_places(std::span<iovec> out, std::size_t& wanted);
  void landed(std::size_t bytes);
  Status consume(Time now);
  Status take_header(bool& more);
  bool grow_meta();
  bool hold_meta();
  void give_back_meta();
  void note_meta(std::size_t bytes);
  Status take_meta(bool& more);
  Status take_payload(bool& more);
  void rest();
  void violate(const Error& why);

  // connection_send.cc
  bool flush_some(std::size_t& budget);
  bool hand_over();
  void leave_movers();
  void count_moved(const Movers::Moved& moved);
  void note_moved(const Movers::Moved& moved);
  [[nodiscard]] bool moves() const noexcept { return move_.pieces > 0; }
  [[nodiscard]] std::size_t body_slice();
  Batch gather_queue(std::span<iovec> out, std::size_t bytes_max, std::size_t body_max) const;
  void advance_queue(const Batch& batch, std::size_t bytes);
  std::size_t advance_front(std::size_t bytes);
  [[nodiscard]] std::deque<Queued>::iterator find_queued(SendId id);
  bool remove_unstarted(std::deque<Queued>::iterator at);
  void drop_queue();
  [[nodiscard]] bool is_crowded() const noexcept;
  void own(std::size_t bytes);
  void disown(std::size_t bytes);
  [[nodiscard]] std::size_t owned_bytes_allowed() const noexcept;
  void call(io::Callback on_done);
  bool tell_drained();

  // connection.cc
  void update_interest();
  [[nodiscard]] bool within_message() const noexcept;
  [[nodiscard]] bool waits_for_reader() const noexcept { return full_ || stream_->unsent() > 0; }
  [[nodiscard]] std::uint64_t passed_bytes() const noexcept;
  void count_unsent();
  void watch_progress();
  void watch_for_stall();
  void on_stall_timer();
  void on_closed_timer();

  io::Loop& loop_;
  MessageHandler& handler_;
  NetCounters& counters_;
  ConnectionOptions options_;
  std::unique_ptr<io::Stream> stream_;
  io::Timer stall_timer_;
  io::Timer closed_timer_;
  io::Timer resume_timer_;
  State state_ = State::kOpen;
  bool started_ = false;
  Error why_closed_{};
  bool told_closed_ = false;
  int in_callback_ = 0;  // depth of calls into the handler that must not destroy this

  // Receiving.
  std::unique_ptr<std::byte[]> ahead_;  // read-ahead: what came behind the bytes that were asked for
  std::size_t ahead_at_ = 0;
  std::size_t ahead_end_ = 0;
  Part part_ = Part::kHeader;
  wire::Header header_{};
  std::vector<std::byte> meta_;
  std::size_t meta_have_ = 0;
  std::size_t meta_touched_ = 0;  // of its memory, since it was given back last
  std::optional<MessageMemory::User> held_meta_;
  std::uint32_t meta_crc_ = 0;  // of these
  std::uint64_t payload_left_ = 0;
  std::unique_ptr<std::byte[]> discard_;  // where bytes without a place go; made when first needed
  Time last_received_{};
  std::uint64_t received_bytes_ = 0;
  std::uint64_t messages_ = 0;  // begun
  Progress receiving_;
  bool held_ = false;  // the handler wants no message now
  io::PrivateFd descriptor_;
  bool paused_ = false;  // nothing is received or taken until replies have gone out
  Time turn_end_{};      // when others have their turn
  Time messages_end_{};  // the same, between two messages
  bool yielded_ = false;
  std::optional<SliceLine::User> more_;            // what it has yielded with; waits: nothing is received or taken
  bool reads_wait_ = false;                        // for a turn of bodies
  std::size_t receive_max_ = BodyTurns::kNoLimit;  // of a payload, in one call

  // Sending.
  std::deque<Queued> queue_;
  SendId next_id_ = 1;
  std::size_t queued_bytes_ = 0;
  std::size_t owned_bytes_ = 0;
  std::size_t unsent_ = 0;      // of the stream, as it is counted in the counters
  std::size_t tokens_ = 0;      // body bytes that the shaper lets pass now
  Batch move_;                  // what a mover has; no pieces: none has any
  bool shares_movers_ = false;  // with others who have bodies to send
  bool was_congested_ = false;
  bool full_ = false;  // the stream takes nothing now
  bool flushing_ = false;
  std::uint64_t sent_bytes_ = 0;
  Progress sending_;
  std::uint64_t farewell_passed_ = 0;  // passed_bytes() when the last second of a farewell began
  Time last_sent_{};                   // or when the stream became full
};

}  // namespace kvd::net
