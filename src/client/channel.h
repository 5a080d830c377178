// Channel: one of a client's two connections to its depot (control or data), from the first attempt to connect over
// HELLO and OPEN to loss and the next attempt, for ever. What it carries is its user's.
//
//   kIdle -> kDialing -> kHello (-> kAuth) (-> kMemory) (-> kKeeper) (-> kArena) (-> kRings) -> kReady -> (loss)
//   kBackoff -> kDialing ...
// A handshake that takes longer than kHandshakeLimit is a loss. Attempts back off from 10 ms to 1 s; a connection that
// stayed ready for a second starts from 10 ms again. A depot that offers its memory and whose memory cannot be mapped
// (no address space, a proxy between) is not asked for it again. To get at memory a channel that wants it tries the
// unix socket beside a loopback port first (net/local_socket.h), and the port where that does not lead to a greeting.
// One with a token uses that socket never: a process of the same user can have taken its name, and would have the token
// (docs/decisions/0011-memory-and-credentials.md).
// A namespace that the depot cannot open yet (it recovers) is asked for again, with the same back-off, and whenever an
// operation wants it. Belongs to the I/O thread; the user outlives it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "client/arena_room.h"
#include "client/backoff.h"
#include "client/loan.h"
#include "client/namespace_table.h"
#include "client/op_deadline.h"
#include "client/resolver.h"
#include "net/connection.h"
#include "net/dialer.h"
#include "net/ring_stream.h"
#include "net/shared_memory.h"

namespace kvd::client {

// To connect and to be greeted: far above any round trip, so that a stopped depot does not collect connections.
inline constexpr Duration kHandshakeLimit = std::chrono::seconds(2);

class Channel;

// Calls of the loop thread, never from inside a call of the user, except payload_*() and on_message() (see
// net::MessageHandler, whose rules hold).
class ChannelUser {
 public:
  virtual ~ChannelUser() = default;
  virtual void on_ready(Channel& channel) = 0;
  // A ready channel is lost (was_ready), or an attempt failed. The channel tries again by itself.
  virtual void on_lost(Channel& channel, const Error& why, bool was_ready) = 0;
  // The depot has refused the connection or a namespace.
  virtual void on_refused(Code code, std::string_view why) = 0;
  // The depot has answered an OPEN: handle(ns) is known now.
  virtual void on_namespace(Channel& channel, NamespaceId ns) = 0;
  virtual Status on_message(Channel& channel, const wire::Header& header, Bytes meta) = 0;
  virtual std::size_t payload_places(Channel& channel, std::span<iovec> out) = 0;
  virtual void payload_landed(Channel& channel, std::size_t bytes) = 0;
  virtual Status on_payload_end(Channel& channel) = 0;
  virtual void on_drained(Channel& channel) = 0;
};

struct ChannelOptions {
  net::Address address;
  std::string name;                  // in HELLO
  std::size_t queue_bytes_high = 0;  // see net::ConnectionOptions
  std::uint64_t seed = 0;            // of the back-off's jitter
  net::MakeDialer make_dialer = {};  // empty = sockets
  bool shared_memory = false;        // ask for the depot's memory, where there is a unix socket
  bool arena = false;                // the same of an arena for what is put
  bool rings = false;                // send through memory, where there is a unix socket
  bool put_parts = false;            // send bodies of puts in parts of layers, where the depot takes them
  // Gives the token that the depot may ask for, once for each connection; empty = there is none.
  std::function<Result<std::string>()> token;
};

class Channel final : private net::MessageHandler {
 public:
  Channel(io::Loop& loop, ChannelUser& user, const NamespaceTable& namespaces, net::NetCounters& counters,
          ChannelOptions options);
  ~Channel() override;

  // Starts the first attempt; on_ready() or on_lost() come from the loop.
  void start();
  // Gives up the present connection; on_lost() comes from the loop, then the next attempt.
  void reset(const Error& why);
  // The depot was just seen to be there: an attempt that waits for its time begins now.
  void hurry();
  // Ends everything, silently: no call of the user, no byte after it. Not from inside a callback of this channel.
  void stop();

  [[nodiscard]] bool ready() const noexcept { return state_ == State::kReady && !connection_->closed(); }
  // The connection of a ready channel.
  [[nodiscard]] net::Connection& connection() noexcept { return *connection_; }
  // Unfinished requests that the depot takes on this connection; from its HELLO.
  [[nodiscard]] std::uint32_t credits() const noexcept { return credits_; }
  // The depot takes bodies of puts in parts of layers (PutFlow), on this connection.
  [[nodiscard]] bool takes_put_parts() const noexcept { return takes_put_parts_; }
  // Sends OPEN for namespaces that were declared since the channel became ready.
  void open_namespaces();
  // Sends OPEN again for one that the depot could not open yet; until the answer is there handle() has none.
  void ask_again(NamespaceId ns);
  // The namespace is not in the table any more, and no operation names it: CLOSE.
  void close_namespace(NamespaceId ns);
  // The depot's answer to the OPEN of a namespace on this connection.
  struct Handle {
    Code code = Code::kBusy;  // kOk: `number` is its handle; kBusy with an empty `why`: there is no answer yet
    std::uint32_t number = 0;
    std::string why;       // of a refusal
    bool closing = false;  // nobody wants it any more: it is given back when the answer is there
    [[nodiscard]] bool answered() const noexcept { return code != Code::kBusy || !why.empty(); }
  };
  [[nodiscard]] const Handle& handle(NamespaceId ns) const;
  // The depot's memory that GET view messages tell of; null unless the depot gave it. Ends with the connection.
  [[nodiscard]] const SharedMapping& memory() const noexcept { return memory_; }
  // Maps it anew; the former mapping stays for as long as somebody has it. kNoSpace.
  Status renew_memory();
  // What makes the depot keep what it lends to GETs that ask for that; null unless the depot gave it. Ends with the
  // connection, or later.
  [[nodiscard]] const SharedKeeper& keeper() const noexcept { return keeper_; }
  // The arena through which puts go; null unless the depot gave one. Ends with the connection, and the puts on it.
  [[nodiscard]] const std::shared_ptr<ArenaRoom>& arena() const noexcept { return arena_; }
  // The distant past without a connection.
  [[nodiscard]] Signs signs() const;
  // The depot has said that it is there, on the other channel.
  void note_word() { word_at_ = loop_.now(); }
  // Bytes were copied from the depot's memory: they have moved, too. Or a body is out.
  void note_body() { body_at_ = loop_.now(); }

 private:
  enum class State : std::uint8_t {
    kIdle,
    kDialing,
    kHello,
    kAuth,
    kMemory,
    kKeeper,
    kArena,
    kRings,
    kReady,
    kBackoff
  };

  void dial();
  void dial_port(const net::Endpoint& endpoint);
  void on_dialed(Result<std::unique_ptr<io::Stream>> stream);
  void on_timer();
  void lost(const Error& why);
  void send_open(const NamespaceTable::Entry& entry);
  void on_reopen_timer();
  void give_back(std::uint32_t handle);
  Status on_hello(const wire::Header& header, Bytes meta);
  Status agree(std::uint64_t given);
  Status on_auth_reply(const wire::Header& header, Bytes meta);
  Status on_memory(const wire::Header& header, Bytes meta);
  Status on_keeper(const wire::Header& header);
  Status on_arena(const wire::Header& header, Bytes meta);
  Status on_rings(const wire::Header& header, Bytes meta);
  [[nodiscard]] std::uint64_t features() const noexcept;
  [[nodiscard]] bool takes_memory() const noexcept {
    return options_.shared_memory || options_.arena || options_.rings;
  }
  Status let_in();
  Status become_ready();
  Status on_open_reply(const wire::Header& header, Bytes meta);

  Status on_message(const wire::Header& header, Bytes meta) override;
  std::size_t payload_places(std::span<iovec> out) override { return user_.payload_places(*this, out); }
  void payload_landed(std::size_t bytes) override { user_.payload_landed(*this, bytes); }
  Status on_payload_end() override { return user_.on_payload_end(*this); }
  void on_drained() override { user_.on_drained(*this); }
  void on_closed(const Error& why) override;

  io::Loop& loop_;
  ChannelUser& user_;
  const NamespaceTable& namespaces_;
  net::NetCounters& counters_;
  ChannelOptions options_;
  Resolver resolver_;
  std::unique_ptr<net::Dialer> dialer_;
  io::Timer timer_;  // of the handshake or the back-off
  Backoff backoff_;
  io::Timer reopen_timer_;  // armed while the depot cannot open a namespace yet
  Backoff reopen_backoff_;
  State state_ = State::kIdle;
  Time ready_since_{};
  std::unique_ptr<net::Connection> connection_;
  bool on_local_socket_ = false;     // this attempt or connection is on the unix socket beside the port
  bool avoid_local_socket_ = false;  // the last attempt there was not greeted
  std::string token_;                // shown on this connection when it is asked for
  bool gives_memory_ = false;        // the depot has agreed to
  bool gives_keeper_ = false;        // the same
  bool gives_arena_ = false;         // the same
  bool gives_rings_ = false;         // the same
  bool takes_put_parts_ = false;
  bool says_features_later_ = false;   // which of these it gives the depot says with the answer to the token
  bool keep_ = true;                   // asked for; not any more once a keeper did not arrive
  net::RingStream* stream_ = nullptr;  // the connection's
  std::uint32_t credits_ = 0;
  SharedMapping memory_;
  SharedKeeper keeper_;
  std::shared_ptr<ArenaRoom> arena_;
  Time body_at_ = Time::min();
  Time word_at_ = Time::min();
  std::unordered_map<NamespaceId, Handle> handles_;
};

// Request ids that are not operations. OpIds stay below 2^62 (op_table.h).
inline constexpr std::uint64_t kOpenIds = std::uint64_t{1} << 63;              // | NamespaceId
inline constexpr std::uint64_t kPingIds = kOpenIds | std::uint64_t{1} << 62;   // | counter
inline constexpr std::uint64_t kUnpinIds = kOpenIds | std::uint64_t{1} << 61;  // | counter
inline constexpr std::uint64_t kReleaseIds = kOpenIds | std::uint64_t{1} << 60;
inline constexpr std::uint64_t kCheckIds = kOpenIds | std::uint64_t{1} << 59;

}  // namespace kvd::client
