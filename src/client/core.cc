// Commands of callers, deadlines, and how ops end. See core.h.
#include "client/core.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvd::client {
namespace {

constexpr std::string_view kTooLate = "the operation's deadline has passed";

}  // namespace

Core::Core(io::Loop& loop, OpTable& ops, const NamespaceTable& namespaces, ClientState& state, CoreOptions options)
    : loop_(loop),
      ops_(ops),
      state_(state),
      options_(std::move(options)),
      running_(ops.ops_max()),
      control_{.channel = Channel(loop, *this, namespaces, state.net,
                                  {.address = options_.address,
                                   .name = options_.name,
                                   .queue_bytes_high = kSendQueueHigh,
                                   .seed = options_.seed,
                                   .make_dialer = options_.make_dialer,
                                   .rings = options_.shared_memory,  // bodies of puts are faster through the socket
                                   .token = options_.token}),
               .draining = {}},
      data_{.channel = Channel(loop, *this, namespaces, state.net,
                               {.address = options_.address,
                                .name = options_.name,
                                .queue_bytes_high = kSendQueueHigh,
                                .seed = options_.seed + 1,
                                .make_dialer = options_.make_dialer,
                                // Views may end while they are copied; only verification tells.
                                .shared_memory = options_.shared_memory && options_.verify,
                                .arena = options_.shared_memory && options_.verify,
                                .put_parts = true,
                                .token = options_.token}),
            .draining = {}},
      breaker_(options_.breaker_failures, options_.breaker_probe),
      probe_timer_(loop, [this] { on_probe_timer(); }),
      copy_timer_(loop, [this] { copy_view(); }),
      release_timer_(loop, [this] { send_releases(); }),
      desk_(std::make_shared<LoanDesk>(loop, [this] { take_back(); })),
      returns_timer_(loop, [this] { look_for_returns(); }),
      loan_timer_(loop, [this] { end_loans(); }),
      prefault_(loop, [this] { return has_waiters(); }) {
  for (std::uint32_t slot = 0; slot < running_.size(); ++slot) {
    running_[slot].timer = std::make_unique<io::Timer>(loop, [this, slot] { on_deadline(slot); });
  }
}

Core::~Core() { KVD_CHECK(stopped_); }

void Core::start() {
  control_.channel.start();
  data_.channel.start();
}

void Core::stop() {
  stopped_ = true;
  state_.set_connected(false);
  control_.channel.stop();
  data_.channel.stop();
  receiving_ = nullptr;
  forget_views();
  probe_timer_.disarm();
  submits_.take_all([this](Op& op, std::uint32_t commands) {
    if ((commands & Op::kStart) != 0) start_op(op);
  });
  for (Running& running : running_) {
    if (running.id != 0) end(running, Code::kCancelled, "the client was closed");
  }
  desk_->close();
  returns_timer_.disarm();
  loan_timer_.disarm();
}

void Core::open_namespaces() {
  control_.channel.open_namespaces();
  data_.channel.open_namespaces();
}

void Core::close_namespace(NamespaceId ns) {
  closing_.push_back(ns);
  close_unused();
}

void Core::close_unused() {
  // Sending may end operations, and so come back here.
  for (const NamespaceId ns : std::exchange(closing_, {})) {
    const auto names = [&](const Running& running) { return running.id != 0 && op_of(running).request.ns == ns; };
    if (std::ranges::any_of(running_, names)) {
      closing_.push_back(ns);
      continue;
    }
    control_.channel.close_namespace(ns);
    data_.channel.close_namespace(ns);
  }
}

void Core::submit(Op& op, Op::Command command) {
  if (submits_.push(op, command)) loop_.post([this] { run_commands(); });
}

void Core::submit_here(Op& op, Op::Command command) {
  if (!submits_.push(op, command)) return;
  if (!loop_.help(Duration::zero(), [this] { run_commands(); }, nullptr)) loop_.post([this] { run_commands(); });
}

void Core::run_commands() {
  if (stopped_) return;
  if (desk_->has_returned()) take_back();  // goes out with the requests
  submits_.take_all([this](Op& op, std::uint32_t commands) { run_command(op, commands); });
  pump_puts();
}

void Core::run_command(Op& op, std::uint32_t commands) {
  Running& running = running_[op.slot];
  if ((commands & Op::kStart) != 0) start_op(op);
  if (running.id == 0) return;
  if ((commands & Op::kLayers) != 0 && running.put != nullptr) on_layers(running);
  // The slot may hold a later op than the one that the cancel was meant for.
  if ((commands & Op::kCancel) != 0 && op.cancel_id.load(std::memory_order_acquire) == running.id) {
    end_early(running, Code::kCancelled, "cancelled by the caller");
  }
}

Op& Core::op_of(const Running& running) { return ops_.at(static_cast<std::uint32_t>(&running - running_.data())); }

Core::Running* Core::running_of(std::uint64_t request_id) {
  const Op* const op = request_id == 0 ? nullptr : ops_.find(request_id);
  if (op == nullptr || running_[op->slot].id != request_id) return nullptr;
  return &running_[op->slot];
}

Core::Side& Core::side_of(const Channel& channel) { return is_data(channel) ? data_ : control_; }

void Core::start_op(Op& op) {
  const OpRequest& request = op.request;
  Running& running = running_[op.slot];
  KVD_CHECK(running.id == 0);
  const bool body = request.kind == OpKind::kGet || request.kind == OpKind::kPut;
  Side& side = body ? data_ : control_;
  running.id = op.results.whole.op;
  running.channel = &side.channel;
  running.sent = false;
  ++side.running;
  const Time now = loop_.now();
  running.deadline = OpDeadline(request.submitted, request.deadline.total, request.deadline.progress);
  // A MATCH would promise what no GET can bring.
  const bool reachable = side.channel.ready() && (request.kind != OpKind::kMatch || data_.channel.ready());
  if (!reachable) return end(running, Code::kUnavailable, "the depot is not connected");
  if (side.running + side.draining.size() > side.channel.credits())
    return end(running, Code::kBusy, "the depot takes no more unfinished requests of this client");
  if (running.deadline.expired(now, now)) return end(running, Code::kTimeout, kTooLate);
  if (request.kind == OpKind::kGet) {
    running.get = std::make_unique<GetFlow>(op, ops_, state_.get, options_.verify);
  } else if (request.kind == OpKind::kPut) {
    running.put = std::make_unique<PutFlow>(op, side.channel.takes_put_parts(), side.channel.arena());
    update_owed(running);
  }
  arm_deadline(running);
  running.channel->ask_again(request.ns);  // a depot that recovers may know it by now
  send_request(op, running);
}

// Sends the request, if the depot has told the namespace's handle already.
void Core::send_request(Op& op, Running& running) {
  const Channel::Handle none{.code = Code::kOk, .number = 0, .why = {}};
  const Channel::Handle& handle = op.request.kind == OpKind::kStats ? none : running.channel->handle(op.request.ns);
  if (!handle.answered()) return;  // on_namespace() comes back
  if (handle.code != Code::kOk) return end(running, handle.code, handle.why);
  if (op.request.borrow) running.get->lend(desk_, running.channel->keeper());
  net::Connection& connection = running.channel->connection();
  wire::Buffer frame = request_frame(op, handle.number, running.deadline.left_ms(loop_.now()));
  if (is_data(*running.channel)) queue_releases();
  connection.send({.head = std::move(frame), .body = {}, .on_done = {}});
  running.sent = true;
  if (running.put != nullptr) on_layers(running);
  // A put that has something to send goes out with the first of it, in one call, unless that has to wait.
  const bool goes_on = running.put != nullptr && running.put->ready() && running.channel->arena() == nullptr;
  if (!goes_on || connection.congested()) connection.flush();
}

wire::Buffer Core::request_frame(const Op& op, std::uint32_t handle, std::uint32_t left_ms) const {
  const OpRequest& request = op.request;
  const std::size_t groups = std::max<std::size_t>(1, request.groups.size());
  const auto blocks = static_cast<std::uint32_t>(request.keys.count() / groups);
  wire::Header header{.request_id = op.results.whole.op, .deadline_ms = left_ms};
  switch (request.kind) {
    case OpKind::kMatch:
      return wire::frame(header, wire::Match{.ns = handle,
                                             .promote = request.promote,
                                             .lease_ms = request.lease_ms,
                                             .blocks = blocks,
                                             .shards = request.shards,
                                             .groups = request.groups,
                                             .keys = request.keys});
    case OpKind::kGet:
      header.layer_first = request.layer_first;
      header.layer_count = request.layer_count;
      return wire::frame(header, wire::Get{.ns = handle,
                                           .shard = request.shards[0],
                                           .group = request.groups[0],
                                           .stop_at_first_failure = request.stop_at_first_failure,
                                           .keep = request.borrow && data_.channel.keeper() != nullptr,
                                           .keys = request.keys});
    case OpKind::kPut:
      return wire::frame(header, wire::Put{.ns = handle,
                                           .shard = request.shards[0],
                                           .group = request.groups[0],
                                           .ack = request.ack,
                                           .keys = request.keys});
    case OpKind::kRemove:
      return wire::frame(
          header, wire::Remove{.ns = handle, .shards = request.shards, .groups = request.groups, .keys = request.keys});
    case OpKind::kStats: break;
  }
  return wire::frame(header, wire::Stats{});
}

// The op is over. Everything of the caller's that it could reach is let go before the caller can learn of it.
void Core::end(Running& running, Code code, std::string_view why) {
  Op& op = op_of(running);
  running.timer->disarm();
  if (receiving_ == &running) receiving_ = nullptr;
  for (const net::SendId body : std::exchange(running.bodies, {})) {
    if (running.channel->ready()) running.channel->connection().abandon(body);
  }
  if (running.get != nullptr) {
    running.get->fill_whole(op.results.whole);
    report_damage(op, running);
    if (code == Code::kOk && op.request.borrow) {
      note_loans(running);
      op.results.view = running.get->make_view();
    }
  }
  running.get.reset();
  running.put.reset();
  --side_of(*running.channel).running;
  running.id = 0;
  op.request.region.drop();
  op.results.whole.code = code;
  op.results.why = why;  // before what it may point into goes
  if (!closing_.empty() && !stopped_) close_unused();
  op.results.whole.why = op.results.why.c_str();
  op.results.whole.took = loop_.now() - op.request.submitted;
  switch (code) {
    case Code::kOk: state_.completed.add(); break;
    case Code::kTimeout: state_.timeouts.add(); break;
    case Code::kCancelled: state_.cancelled.add(); break;
    case Code::kBusy: state_.busy.add(); break;
    default: state_.failed.add(); break;
  }
  ops_.announce_end(op);
}

void Core::report_damage(const Op& op, const Running& running) {
  const auto damaged = running.get->damaged();
  if (damaged.empty()) return;
  const KeyList& keys = op.request.keys;
  std::vector<std::byte> bytes;
  for (const std::uint32_t key : damaged) {
    const auto one = keys.bytes.subspan(std::size_t{key} * keys.key_bytes, keys.key_bytes);
    bytes.insert(bytes.end(), one.begin(), one.end());
  }
  report_damage(op.request.ns, op.request.shards[0], op.request.groups[0],
                {.bytes = bytes, .key_bytes = keys.key_bytes, .native = keys.native});
}

// Tells the depot which records arrived damaged: a bad image in its pool would else be a miss until it is evicted.
void Core::report_damage(NamespaceId ns, std::uint16_t shard, std::uint16_t group, const KeyList& keys) {
  if (!data_.channel.ready()) return;
  const Channel::Handle& handle = data_.channel.handle(ns);
  if (!handle.answered() || handle.code != Code::kOk) return;  // closed here since, or not open again yet
  const wire::Check check{.ns = handle.number, .shard = shard, .group = group, .keys = keys};
  data_.channel.connection().send({.head = wire::frame({.request_id = kCheckIds}, check), .body = {}, .on_done = {}});
  data_.channel.connection().flush();
}

// The depot has answered with a status: the end, with its reason.
Status Core::end_refused(Running& running, const wire::Header& header, Bytes meta) {
  const std::string why = wire::error_text(meta);
  const bool own = header.status == Code::kTimeout || header.status == Code::kCancelled;  // what was asked for
  if (!own) state_.set_refusal(header.status, why);
  end(running, header.status, why);
  return {};
}

// Ends an op whose answer has not come: the depot is told to stop, what still comes is discarded.
void Core::end_early(Running& running, Code code, std::string_view why) {
  const std::uint64_t id = running.id;
  Channel& channel = *running.channel;
  const bool tell = running.sent && channel.ready();
  const bool body = running.get != nullptr || running.put != nullptr;
  const bool last_seen = receiving_ == &running && receiving_last_;  // its last message is coming: nothing follows
  end(running, code, why);
  if (!tell || last_seen) return;
  side_of(channel).draining.insert(id);
  if (!body) return;  // MATCH and STATS are answered soon, REMOVE when it is written; there is nothing to stop
  channel.connection().send({.head = wire::frame({.request_id = id}, wire::Cancel{}), .body = {}, .on_done = {}});
  channel.connection().flush();
}

// Requests that a depot doesn't answer are no sign of life: while they keep coming, none would ever be late. So on the
// control connection, where no body goes out, only what came from it counts.
Signs Core::signs_of(const Channel& channel) const {
  Signs signs = channel.signs();
  if (!is_data(channel)) signs.moved = signs.bodies;
  return signs;
}

void Core::arm_deadline(Running& running) {
  const Signs signs = signs_of(*running.channel);
  const Time at = std::min(running.deadline.check_at(running.deadline.alive_at(signs)), ask_at(running, signs));
  if (at == kNever) return running.timer->disarm();
  running.due = std::max(at, loop_.now());
  running.timer->arm(at);
}

// When the depot is to be asked for its word; kNever where that would not help, or is under way.
Time Core::ask_at(const Running& running, const Signs& signs) const {
  if (!is_data(*running.channel) || word_id_ != 0 || !control_.channel.ready()) return kNever;
  return running.deadline.ask_at(signs);
}

void Core::on_deadline(std::uint32_t slot) {
  Running& running = running_[slot];
  if (running.id == 0) return;
  Channel& channel = *running.channel;
  const Signs signs = signs_of(channel);
  running.deadline.note_late(running.due, loop_.now());
  if (!running.deadline.expired(loop_.now(), running.deadline.alive_at(signs))) {
    if (loop_.now() >= ask_at(running, signs)) ask_for_word();
    return arm_deadline(running);
  }
  // The breaker first: whoever learns of this end must find it open, or the next request pays a deadline, too.
  const bool stalled = running.deadline.stalled(loop_.now(), signs.moved);
  const bool dead = stalled && is_data(channel) && running.deadline.word_used_up(loop_.now(), signs);
  if (stalled) fail_breaker();
  end_early(running, Code::kTimeout, kTooLate);
  pump_puts();  // others may have waited in line behind it
  if (!dead || !channel.ready()) return;
  data_made_anew_ = true;
  channel.reset({Code::kTimeout, 0, "the depot is there and sends nothing"});
}

void Core::unpin(LeaseId lease) {
  if (!control_.channel.ready() || unpins_ >= kUnpinsMax) return;
  ++unpins_;
  const wire::Header header{.request_id = kUnpinIds | next_internal_id_++};
  control_.channel.connection().send({.head = wire::frame(header, wire::Unpin{lease}), .body = {}, .on_done = {}});
  control_.channel.connection().flush();
}

}  // namespace kvd::client
