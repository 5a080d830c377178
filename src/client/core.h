// Core: the client's I/O thread as an object: takes submitted ops, sends their requests, routes answers to them, keeps
// their deadlines, the breaker and both channels. Everything it waits for is the loop's, so it runs on virtual time in
// tests as it does on a thread.
//
// How an op ends: by its answer; by its deadline or cancel(), after which late bytes are discarded and the depot is
// told to stop; or as its connection is lost. Always through end(), once, after which the Core knows it no more.
// Belongs to the loop thread, or to who takes its turns (Loop::help), except submit(), submit_here() and the
// constructor.
#pragma once

#include <deque>
#include <unordered_set>
#include <vector>

#include "client/breaker.h"
#include "client/channel.h"
#include "client/client_state.h"
#include "client/get_flow.h"
#include "client/op_deadline.h"
#include "client/op_table.h"
#include "client/prefault.h"
#include "client/put_flow.h"
#include "client/submit_stack.h"

namespace kvd::client {

// A PUT data message is produced when less than this waits to be sent: the socket never runs dry (its own buffer holds
// more), and a GET that comes behind waits for at most this and a message.
inline constexpr std::size_t kSendQueueHigh = std::size_t{2} << 20;
// PUT data messages are handed to the kernel when so much of them waits, or nothing more is ready: the depot's thread
// is woken less often than by each record (docs/results/net.md, Longer parts).
inline constexpr std::size_t kSendAtOnce = std::size_t{1} << 20;
// Slabs hashed in one turn of the loop before others get theirs (0.2-0.4 ms).
inline constexpr std::size_t kHashBytesPerTurn = std::size_t{8} << 20;
// Slabs copied to the arena, and hashed, in one turn: the same time.
inline constexpr std::size_t kPutCopiesPerTurn = std::size_t{2} << 20;
inline constexpr std::uint32_t kProbesBeforeReset = 3;  // unanswered probes until the connections are made anew
inline constexpr std::uint32_t kUnpinsMax = 1024;       // unanswered UNPINs; more are dropped, leases expire anyway
// Copied from the depot's memory in one turn of the loop before others get theirs: as much as a receive call brings
// (kReceiveBytesMax) between looks at what callers want, and 2 to 4 of these, about a millisecond.
inline constexpr std::size_t kCopiesPerTurn = 4;

struct CoreOptions {
  net::Address address;
  std::string name;
  std::uint32_t breaker_failures = 1;
  Duration breaker_probe = std::chrono::seconds(1);
  bool verify = true;
  std::uint64_t seed = 0;            // jitter of the back-off
  net::MakeDialer make_dialer = {};  // of both connections; empty = sockets
  bool shared_memory = true;         // on the same host: read the depot's memory when it offers that, and look
                                     // up through memory
  std::function<Result<std::string>()> token{};  // see ChannelOptions
};

class Core final : private ChannelUser {
 public:
  Core(io::Loop& loop, OpTable& ops, const NamespaceTable& namespaces, ClientState& state, CoreOptions options);
  ~Core() override;

  // Any thread: queues a command and wakes the loop when it is the first one.
  void submit(Op& op, Op::Command command);
  // The same, but takes the turn that carries it out on the calling thread where the loop sleeps: no other thread need
  // wake up. For what is short: it sends what waits to be sent.
  void submit_here(Op& op, Op::Command command);

  void start();
  void open_namespaces();
  // The namespace is not in the table any more: the depot is told when the last operation that names it has ended.
  void close_namespace(NamespaceId ns);
  // Gives a lease back. Dropped when the depot is away.
  void unpin(LeaseId lease);
  // Opens the breaker at once: somebody else has found the depot failing.
  void suspect();
  // Connects now where an attempt waits for its time: somebody else has seen the depot.
  void hurry();
  // Slabs that readers of views have found damaged. Any thread.
  [[nodiscard]] std::uint64_t damaged_in_views() const noexcept { return desk_->damaged_slabs(); }
  // Ends every op with kCancelled and both channels. Nothing lands after it.
  void stop();

 private:
  // An op that has been started and has not ended.
  struct Running {
    OpId id = 0;  // 0: none in this slot
    Channel* channel = nullptr;
    bool sent = false;  // the request is on its way; false: waits for its namespace
    OpDeadline deadline;
    std::unique_ptr<io::Timer> timer;  // made once per slot
    Time due = kNever;                 // when it is to fire
    std::unique_ptr<GetFlow> get;
    std::unique_ptr<PutFlow> put;
    std::deque<net::SendId> bodies;  // PUT data messages that read from the caller's memory
    bool pumping = false;            // in puts_
    std::uint64_t turn_bytes = 0;    // queued since its turn among puts_ began
  };
  // A channel and the requests that the depot has not finished on it.
  struct Side {
    Channel channel;
    std::uint32_t running = 0;
    std::unordered_set<std::uint64_t> draining;  // ended here, last message not seen; bounded by the depot's credits
  };

  // core.cc: commands, ends, deadlines
  void run_commands();
  void run_command(Op& op, std::uint32_t commands);
  void start_op(Op& op);
  void send_request(Op& op, Running& running);
  [[nodiscard]] wire::Buffer request_frame(const Op& op, std::uint32_t handle, std::uint32_t left_ms) const;
  void end(Running& running, Code code, std::string_view why);
  Status end_refused(Running& running, const wire::Header& header, Bytes meta);
  void end_early(Running& running, Code code, std::string_view why);
  void close_unused();
  void report_damage(const Op& op, const Running& running);
  void report_damage(NamespaceId ns, std::uint16_t shard, std::uint16_t group, const KeyList& keys);
  void on_deadline(std::uint32_t slot);
  void arm_deadline(Running& running);
  [[nodiscard]] Signs signs_of(const Channel& channel) const;
  [[nodiscard]] Time ask_at(const Running& running, const Signs& signs) const;
  [[nodiscard]] Op& op_of(const Running& running);
  [[nodiscard]] Running* running_of(std::uint64_t request_id);
  [[nodiscard]] Side& side_of(const Channel& channel);
  [[nodiscard]] bool is_data(const Channel& channel) const noexcept { return &channel == &data_.channel; }

  // core_health.cc: breaker, connections
  void fail_breaker();
  void close_breaker();
  void on_probe_timer();
  void ask_for_word();
  void on_ready(Channel& channel) override;
  void on_lost(Channel& channel, const Error& why, bool was_ready) override;
  void on_refused(Code code, std::string_view why) override { state_.set_refusal(code, why); }
  void on_namespace(Channel& channel, NamespaceId ns) override;

  // core_replies.cc: what the depot says
  Status on_message(Channel& channel, const wire::Header& header, Bytes meta) override;
  std::size_t payload_places(Channel& channel, std::span<iovec> out) override;
  void payload_landed(Channel& channel, std::size_t bytes) override;
  Status on_payload_end(Channel& channel) override;
  Status on_stray(Side& side, const wire::Header& header, Bytes meta);
  Status on_get_data(Running& running, const wire::Header& header, Bytes meta);
  Status on_put_reply(Running& running, const wire::Header& header, Bytes meta);
  Status on_match_reply(Running& running, const wire::Header& header, Bytes meta);
  Status on_remove_reply(Running& running, const wire::Header& header, Bytes meta);
  Status on_stats_reply(Running& running, const wire::Header& header, Bytes meta);
  Status end_unless_corrupt(Running& running, const wire::Header& header, const Status& why);
  void finish_get(Running& running, bool last);

  // core_views.cc: slabs in the depot's memory
  Status on_get_view(Running& running, const wire::Header& header, Bytes meta);
  Status on_stray_view(Side& side, const wire::Header& header, Bytes meta);
  void copy_view();
  void release_view(std::uint64_t view);
  void queue_releases();
  void send_releases();
  void forget_views();
  [[nodiscard]] bool has_waiters() const noexcept;
  void note_loans(const Running& running);
  void take_back();
  void look_for_returns();
  void end_loans();
  Time end_loan(Loan& loan, std::size_t& bytes_left);

  // core_puts.cc: what goes out
  void on_layers(Running& running);
  void pump_puts();
  bool pump_put(Running& running, std::size_t& budget);
  void on_body_sent(std::uint32_t slot, OpId id, std::size_t bytes);
  void on_told(Channel& channel, std::size_t bytes);
  Status on_taken(Channel& channel, const wire::Header& header, Bytes meta);
  void update_owed(Running& running);
  void on_drained(Channel& channel) override;

  io::Loop& loop_;
  OpTable& ops_;
  ClientState& state_;
  CoreOptions options_;
  SubmitStack submits_;
  std::vector<Running> running_;  // by slot
  Side control_;
  Side data_;
  Breaker breaker_;
  io::Timer probe_timer_;
  bool probe_sent_ = false;
  bool data_made_anew_ = false;  // lost by our own will: says nothing of the depot, and neither does its greeting
  std::uint64_t word_id_ = 0;    // of the PING that asks for the depot's word, not answered yet; 0 = none
  std::uint64_t next_internal_id_ = 1;
  std::uint32_t unpins_ = 0;

  Running* receiving_ = nullptr;  // whose payload comes in on the data channel; null: it is discarded
  bool receiving_last_ = false;
  std::uint64_t view_ = 0;               // that is being copied for receiving_, or was, until it ended; 0 = none
  io::Timer copy_timer_;                 // the next turn of copying
  std::vector<std::uint64_t> releases_;  // views that the depot is told of at the end of the turn
  io::Timer release_timer_;
  // Of borrows, with the time at which they end under who still has them. Some have ended.
  struct TimedLoan {
    Time until{};
    std::weak_ptr<Loan> loan;
  };
  const std::shared_ptr<LoanDesk> desk_;  // owners: this, and all loans
  std::vector<TimedLoan> loans_;
  Time lent_at_{};  // the last of them
  io::Timer returns_timer_;
  io::Timer loan_timer_;
  Time loan_timer_at_ = kNever;
  Prefault prefault_;               // of the data channel's memory
  std::deque<std::uint32_t> puts_;  // slots with layers to send; the first one has its turn
  bool pump_posted_ = false;
  bool pumping_ = false;
  bool stopped_ = false;
  std::vector<NamespaceId> closing_;  // namespaces that operations may still name
  bool was_connected_ = false;        // both channels were ready once
};

}  // namespace kvd::client
