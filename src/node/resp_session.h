// RespSession: one Redis client's connection (docs/resp.md). Parses its commands, runs them, answers in order.
//
// Reads run beside each other: up to kRepliesMax commands are under way, and values are looked for as long as less than
// kAheadBytes are pinned for this connection. A write runs alone, behind everything before it and before everything
// behind it, so a pipeline sees what it wrote. Bounds: arguments (wire/resp.h), the pool's budgets for gets and puts,
// replies queued (congested(): no command is taken until the client has read), a client that stops within a command or
// does not read is cut. Those that have more than a command and a value share the turns of the loop: kTurn of
// each for what comes, and kTurn for those who have begun before, in slices. Owned by RespServer; belongs to its loop.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/stream.h"
#include "net/byte_connection.h"
#include "net/message_memory.h"
#include "net/slices.h"
#include "node/context.h"
#include "node/resp_put.h"
#include "node/resp_read.h"
#include "node/stranger.h"
#include "node/turn_time.h"
#include "wire/resp.h"

namespace kvd::node {

// How a Redis client is known; all empty = nobody has to say who he is.
struct RespDoors {
  // `peer`: where he comes from, for the log.
  std::function<std::optional<RespAccess>(std::string_view token, std::string_view peer)> by_token;
  std::function<std::optional<RespAccess>(const io::PeerCertificate& certificate)> by_certificate;
};

// What the RESP sessions of a node share. Owned by RespServer.
struct RespContext {
  NodeContext& node;
  TurnTime turn;        // kTurn
  net::SliceLine line;  // of those that have more; the same
  AckLevel ack;         // that a SET waits for
  RespDoors doors;
  // The tenant's keyspace; kNoSpace when it cannot be opened.
  std::function<Result<std::shared_ptr<RespKeyspace>>(const std::string& tenant)> keyspace_of;
  std::function<std::string(bool all)> info;  // INFO's text; all: also figures of what all tenants do
};

inline constexpr std::string_view kRespRecovering = "LOADING the depot is recovering: nothing is changed yet";
inline constexpr std::string_view kRespDraining = "LOADING the depot is shutting down";
inline constexpr std::string_view kRespTenantBusy = "BUSY the tenant has as many requests in flight as it may";

// Of arguments that are no values: one that is longer is not kept.
inline constexpr std::size_t kRespArgumentBytesMax = std::size_t{64} << 10;

class RespCommands;  // the table of commands (resp_commands.h)

class RespSession final : private net::ByteHandler {
 public:
  static constexpr std::size_t kRepliesMax = 64;
  static constexpr std::uint64_t kAheadBytes = std::uint64_t{16} << 20;
  static constexpr Duration kTurn = std::chrono::microseconds(200);
  static constexpr Duration kSlice = std::chrono::microseconds(50);  // some seven values that are looked for
  static constexpr int kAtOnce = 2;  // commands and values that have others behind them and do not wait for that
  static constexpr std::size_t kKeptKeyBytesMax = std::size_t{1} << 20;  // of replies, and one command's more
  using OnClosed = std::function<void(RespSession&, const Error&)>;

  // `on_closed` comes once, from the loop; it may destroy the session.
  RespSession(RespContext& context, std::uint64_t number, std::unique_ptr<io::Stream> stream, OnClosed on_closed);
  ~RespSession() override;

  // kBusy: too many have not said yet who they are.
  Status start();
  // Has done nothing yet that somebody does who may: his place may go to another.
  [[nodiscard]] bool is_newcomer() const noexcept { return !greeted_; }
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  [[nodiscard]] const std::string& peer_host() const noexcept { return peer_host_; }
  // Nothing is under way and nothing waits to be sent.
  [[nodiscard]] bool idle() const noexcept {
    return replies_.empty() && !late_ && !writing_ && puts_.empty() && connection_->queued_bytes() == 0;
  }
  void close(const Error& why) { connection_->close(why); }
  // Since when its client has taken nothing, while it pins what others may wait for; kNever otherwise.
  [[nodiscard]] Time stuck_since() const noexcept { return pins_.used() > 0 ? connection_->stuck_since() : kNever; }
  [[nodiscard]] bool is_secure() const noexcept { return connection_->stream().is_secure(); }

 private:
  friend class RespCommands;
  enum class Answer : std::uint8_t { kText, kValue, kValues, kCount, kLength, kRange };
  // What one command answers, in its place.
  struct Reply {
    Answer answer = Answer::kText;
    TenantSlot slot;    // until it is answered
    wire::Buffer text;  // of kText; of others nothing
    std::vector<std::string> keys;
    std::size_t key_bytes = 0;                    // of these, for kKeptKeyBytesMax
    std::deque<std::shared_ptr<RespRead>> reads;  // of keys [sent, sent + reads.size())
    std::size_t sent = 0;                         // keys whose part of the answer is queued or counted
    std::int64_t count = 0;                       // of kCount
    std::int64_t first = 0, last = 0;             // of kRange
    bool begun = false;                           // its head is queued
    bool tried_alone = false;                     // its next value, with nothing else pinned
  };
  enum class Condition : std::uint8_t { kAlways, kAbsent, kPresent };
  using Words = std::vector<std::string_view>;

  // net::ByteHandler
  std::size_t places(std::span<iovec> out) override;
  Status landed(std::size_t bytes) override;
  [[nodiscard]] bool within() const override { return parser_.within_command() && !command_waits_ && !writing_; }
  [[nodiscard]] std::uint64_t finished() const override { return commands_; }
  void on_drained() override { schedule(); }
  void on_closed(const Error& why) override;

  // resp_session.cc: bytes, order, values
  void parse();
  [[nodiscard]] bool takes_commands() const;
  void on_argument();
  void begin_value(std::size_t i);
  void on_command();
  void run_command();
  void begin_turn();
  [[nodiscard]] bool turn_is_over();
  [[nodiscard]] bool has_unparsed() const noexcept { return ahead_at_ < ahead_end_ || connection_->held(); }
  void go_on();
  void schedule() { pump_timer_.arm(context_.node.loop.now()); }
  void pump();
  void start_reads();
  [[nodiscard]] std::shared_ptr<RespRead> new_read(const Reply& reply, std::size_t key);
  [[nodiscard]] static bool starved(const Reply& reply);
  bool try_alone(Reply& reply);
  bool send_replies();
  bool send_keys(Reply& reply);
  void send_value(const std::shared_ptr<RespRead>& read, std::uint64_t first, std::uint64_t bytes);
  void send_one(Reply& reply, const std::shared_ptr<RespRead>& read);
  void send_text(wire::Buffer text);
  void keep_keys(Reply& reply, std::vector<std::string> keys);
  bool take_slot();
  void forget_puts();

  // Answers.
  wire::Buffer& answer();  // where its text goes
  void answer_error(std::string_view text);
  void answer_ok() { answer_simple("OK"); }
  void answer_simple(std::string_view text);
  void answer_nil();
  void answer_integer(std::int64_t value);
  void answer_bulk(std::string_view text);

  // resp_commands.cc: what may be a pointer in its table
  void ping(const Words& words);
  void echo(const Words& words);
  void quit(const Words& words);
  void auth(const Words& words);
  bool log_in(std::string_view user, std::string_view token);
  Status enter(const RespAccess& access);
  void turn_away(const Error& why);
  void shake_off();
  void on_refusal_timer();
  void hello(const Words& words);
  void select(const Words& words);
  void client(const Words& words);
  void command(const Words& words);
  void info(const Words& words);
  void get(const Words& words);
  void mget(const Words& words);
  void exists(const Words& words);
  void strlen(const Words& words);
  void getrange(const Words& words);
  void set(const Words& words);
  void mset(const Words& words);
  void del(const Words& words);
  void begin_read(Answer kind, std::vector<std::string> keys);

  // resp_write.cc
  [[nodiscard]] static std::string why_not_begun(const Error& why);
  void store_all(Condition condition);
  void parts_stored(Condition condition, const Status& status);
  void published(const Status& status);
  void write_done();
  void remove_some();
  void removed();

  RespContext& context_;
  const std::uint64_t number_;
  OnClosed on_closed_;
  std::shared_ptr<RespKeyspace> keyspace_;  // null until the client has said who it is
  RespAccess access_;
  TenantSlot seat_;  // one of its tenant's connections
  std::string peer_host_;
  Stranger stranger_;  // until then, where it has to be said
  bool greeted_ = false;
  bool shaken_ = false;   // its first bytes have come: a handshake, where there is one, is done
  bool refused_ = false;  // has shown a wrong token: nothing more is taken
  io::Timer auth_timer_;
  io::Timer refusal_timer_;
  int version_ = 2;
  std::string name_;
  std::uint64_t commands_ = 0;  // that have come

  Pins pins_;  // of the node's `pinned`
  RespChecks checks_;
  ConnectionBudget unfinished_;  // of the node's `unfinished`
  wire::RespParser parser_;
  net::MessageMemory::User held_;       // of the command that is coming
  std::unique_ptr<std::byte[]> ahead_;  // what came and is not parsed yet
  std::size_t ahead_at_ = 0, ahead_end_ = 0;
  std::size_t direct_ = 0;                             // bytes that the next receive puts in the value's place first
  TenantSlot slot_;                                    // of the current command
  std::string refusal_;                                // why the current command's value was not taken
  std::vector<std::shared_ptr<RespPut>> puts_;         // of the current command, in order
  std::vector<std::shared_ptr<RespPut>> inline_puts_;  // the same of an inline command, while they are made
  std::deque<Reply> replies_;
  std::size_t kept_key_bytes_ = 0;  // of these
  bool command_waits_ = false;      // one that runs alone, for the replies before it
  bool writing_ = false;            // a write waits for the store
  bool quits_ = false;              // the connection ends behind the last reply
  std::size_t writes_left_ = 0;
  Status write_status_;
  bool single_ = false;                // the write is a SET, which answers differently
  std::vector<std::string> removing_;  // keys of a DEL
  std::size_t removing_at_ = 0;        // the next of them
  std::int64_t removed_ = 0;           // that were there
  bool in_pump_ = false;
  Time turn_end_{};
  int at_once_left_ = 0;
  bool late_ = false;  // its turn is over, and there may be more: it stands in line
  net::SliceLine::User line_;
  io::Timer pump_timer_;
  io::Timer write_timer_;  // of the values of a command, from the first byte to the answer
  // What the store calls back finds it gone.
  std::shared_ptr<RespSession*> self_ = std::make_shared<RespSession*>(this);
  std::unique_ptr<net::ByteConnection> connection_;  // last: its end gives values back
};

}  // namespace kvd::node
