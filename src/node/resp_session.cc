#include "node/resp_session.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "net/address.h"
#include "node/resp_commands.h"

namespace kvd::node {
namespace {

using wire::RespParser;

constexpr std::size_t kReadAheadBytes = std::size_t{16} << 10;
// The same of somebody who has not shown who he is, and how many of them are kept: HELLO 3 AUTH user token SETNAME
// name.
constexpr std::size_t kStrangersArgumentBytesMax = std::size_t{1} << 10;
constexpr std::size_t kStrangersArgumentsMax = 8;
constexpr std::size_t kWindow = 16;  // keys of one MGET that are looked for at a time
constexpr std::string_view kEndOfLine = "\r\n";

net::ByteConnection::Options resp_connection_options(const NodeContext& context) {
  return {.queue_bytes_high = context.limits.reply_bytes_max,
          .owned_bytes_all_max = context.limits.reply_bytes_all_max,
          .stall_limit = context.limits.stall_limit,
          .progress_bytes_min = context.limits.progress_bytes_min,
          .turns = context.turns,
          .messages = &context.messages};
}

std::string_view why_not_read(Code code) {
  if (code == Code::kBusy) return "BUSY the depot has no room in memory for this value now, try again";
  if (code == Code::kTimeout) return "BUSY the depot's drive did not answer in time, try again";
  return "ERR the value could not be read";
}

}  // namespace

RespSession::RespSession(RespContext& context, std::uint64_t number, std::unique_ptr<io::Stream> stream,
                         OnClosed on_closed)
    : context_(context),
      number_(number),
      on_closed_(std::move(on_closed)),
      peer_host_(net::peer_host(stream->fd())),
      stranger_(context.node, [this](const Error& why) { close(why); }),
      auth_timer_(context.node.loop, [this] { close(Error{Code::kTimeout, 0, "no AUTH came"}); }),
      refusal_timer_(context.node.loop, [this] { on_refusal_timer(); }),
      pins_(context.node.pinned.bytes_max() / 100 * context.node.limits.connection_percent_max, context.node.pinned),
      checks_(context.node.checks),
      unfinished_(context.node.unfinished.bytes_max() / 100 * context.node.limits.connection_percent_max,
                  context.node.unfinished),
      held_(context.node.message_memory, [this] { close(net::kTooMuchUnfinished); }),
      ahead_(std::make_unique<std::byte[]>(kReadAheadBytes)),
      line_(context.line,
            [this] {
              go_on();
              return false;  // it stands in line again, if there is more
            }),
      pump_timer_(context.node.loop, [this] { pump(); }),
      write_timer_(context.node.loop, [this] { close(Error{Code::kTimeout, 0, "a SET took too long"}); }),
      connection_(std::make_unique<net::ByteConnection>(context.node.loop, static_cast<net::ByteHandler&>(*this),
                                                        context.node.net, std::move(stream),
                                                        resp_connection_options(context.node))) {
  pins_.taken = [this] { return connection_->taken_bytes(); };
}

RespSession::~RespSession() {
  connection_.reset();  // its queue gives values back to the budgets
  *self_ = nullptr;
  for (const auto& put : puts_) put->abort();
  for (Reply& reply : replies_)
    for (const auto& read : reply.reads) read->abort();
  context_.node.net.owned_bytes.sub(kept_key_bytes_);
}

Status RespSession::start() {
  // A handshake is paid for before anybody is known, whoever may come in.
  if (context_.doors.by_token || is_secure()) {
    if (Status taken = stranger_.take(connection_->stream()); !taken) return taken;
    auth_timer_.arm_in(context_.node.limits.introduction_limit(is_secure()));
  }
  if (context_.doors.by_token) return connection_->start();
  auto keyspace = context_.keyspace_of(access_.tenant);
  if (!keyspace) return fail(keyspace.error());
  keyspace_ = std::move(*keyspace);
  return connection_->start();
}

// Who has shaken hands, and may come in or is known by it, is no stranger.
void RespSession::shake_off() {
  if (!context_.doors.by_token) {
    stranger_.release();
    return auth_timer_.disarm();
  }
  const io::PeerCertificate* const certificate = connection_->stream().peer_certificate();
  if (certificate == nullptr || !context_.doors.by_certificate) return;
  const auto access = context_.doors.by_certificate(*certificate);
  if (!access) return;
  if (const Status in = enter(*access); !in) turn_away(in.error());
}

void RespSession::on_closed(const Error& why) {
  if (const char* const refusal = connection_->stream().refusal()) context_.node.gate.refuse(peer_host_, refusal);
  on_closed_(*this, why);
}

// ---- Bytes in ----

// A value that is coming goes to its place; behind its end, and otherwise, to the read-ahead.
std::size_t RespSession::places(std::span<iovec> out) {
  std::size_t count = 0;
  direct_ = 0;
  if (ahead_at_ > 0) {
    std::memmove(ahead_.get(), ahead_.get() + ahead_at_, ahead_end_ - ahead_at_);
    ahead_end_ -= ahead_at_;
    ahead_at_ = 0;
  }
  if (parser_.passing() && ahead_end_ == 0) {
    const MutableBytes place = puts_.back()->place();
    direct_ = static_cast<std::size_t>(std::min<std::uint64_t>(place.size(), parser_.body_left()));
    out[count++] = {place.data(), direct_};
    if (direct_ < parser_.body_left()) return count;
  }
  KVD_CHECK(ahead_end_ < kReadAheadBytes);
  out[count++] = {ahead_.get() + ahead_end_, kReadAheadBytes - ahead_end_};
  return count;
}

Status RespSession::landed(std::size_t bytes) {
  if (!std::exchange(shaken_, true)) shake_off();
  const std::size_t direct = std::min(bytes, direct_);
  if (direct > 0) {
    puts_.back()->landed(direct);
    parser_.landed(direct);
  }
  ahead_end_ += bytes - direct;
  begin_turn();
  parse();
  pump();
  return {};
}

bool RespSession::takes_commands() const {
  return connection_->open() && !late_ && !quits_ && !refused_ && !command_waits_ && !writing_ &&
         replies_.size() < kRepliesMax && kept_key_bytes_ < kKeptKeyBytesMax && !connection_->congested();
}

void RespSession::begin_turn() {
  if (late_) return;
  turn_end_ = context_.line.empty() ? context_.turn.end() : Time::min();
  at_once_left_ = kAtOnce;
}

// Asked behind each piece of work that may be followed by another. Who is late goes on in its slice.
bool RespSession::turn_is_over() {
  if (late_) return true;
  if (at_once_left_ > 0 && --at_once_left_ > 0) return false;
  late_ = context_.node.loop.now() >= turn_end_;
  if (late_) line_.enter();
  return late_;
}

void RespSession::go_on() {
  late_ = false;
  turn_end_ = after(context_.node.loop.now(), kSlice);
  if (!removing_.empty()) remove_some();
  pump();
}

// Until the bytes are used up, or no command may be taken now: then nothing more is received either.
void RespSession::parse() {
  while (takes_commands()) {
    const Bytes rest(ahead_.get() + ahead_at_, ahead_end_ - ahead_at_);
    if (parser_.passing()) {
      if (rest.empty()) return;
      const MutableBytes place = puts_.back()->place();
      const auto n =
          static_cast<std::size_t>(std::min<std::uint64_t>(std::min(place.size(), rest.size()), parser_.body_left()));
      std::memcpy(place.data(), rest.data(), n);
      puts_.back()->landed(n);
      parser_.landed(n);
      ahead_at_ += n;
      continue;
    }
    std::size_t used = 0;
    const RespParser::Event event = parser_.next(rest, used);
    ahead_at_ += used;
    switch (event) {
      case RespParser::Event::kArgument: on_argument(); break;
      case RespParser::Event::kCommand:
        on_command();
        if (has_unparsed()) static_cast<void>(turn_is_over());
        break;
      case RespParser::Event::kBroken:
        context_.node.net.protocol_errors.add();
        answer_error("ERR " + parser_.problem());
        quits_ = true;
        break;
      case RespParser::Event::kMore:
        if (!parser_.passing()) return;
        break;
    }
  }
  connection_->hold();
}

// An argument is announced: a value goes into the pool, what no command takes is not kept.
void RespSession::on_argument() {
  const std::size_t i = parser_.arguments().size() - 1;
  const bool is_value = i >= 2 && RespCommands::is_value(parser_.text(0), i);
  if (is_value) return begin_value(i);
  if (keyspace_ == nullptr && i >= kStrangersArgumentsMax) return parser_.drop();
  if (parser_.body_left() > (keyspace_ == nullptr ? kStrangersArgumentBytesMax : kRespArgumentBytesMax)) parser_.drop();
}

void RespSession::begin_value(std::size_t i) {
  const std::uint64_t bytes = parser_.body_left();
  const RespParser::Argument& key = parser_.arguments()[i - 1];
  if (refusal_.empty() && keyspace_ != nullptr && access_.writes) {
    if (key.taken != RespParser::Taken::kKept || key.bytes > kRespKeyBytesMax) {
      refusal_ = "ERR the key is longer than 1024 bytes";
    } else if (bytes > kRespValueBytesMax) {
      refusal_ = "ERR string exceeds maximum allowed size (64 MiB)";
    } else if (context_.node.draining) {
      refusal_ = kRespDraining;
    } else if (context_.node.store.recovering()) {
      refusal_ = kRespRecovering;
    } else if (!take_slot()) {
      refusal_ = kRespTenantBusy;
    } else {
      auto put = std::make_shared<RespPut>(context_.node, keyspace_, parser_.text(i - 1), bytes);
      const Status begun = put->begin(unfinished_, context_.ack);
      if (begun) {
        puts_.push_back(std::move(put));
        if (!write_timer_.armed()) write_timer_.arm_in(context_.node.limits.op_limit);
        return parser_.pass();
      }
      refusal_ = why_not_begun(begun.error());
      context_.node.counters.answered_busy.add();
    }
  }
  parser_.drop();
}

void RespSession::on_command() {
  ++commands_;
  const auto looks = [](const Reply& reply) { return reply.answer != Answer::kText; };
  if (RespCommands::runs_alone(parser_.text(0)) && std::ranges::any_of(replies_, looks)) {
    command_waits_ = true;
    return;
  }
  run_command();
}

void RespSession::run_command() {
  context_.node.counters.resp_commands.add();
  Words words;
  for (std::size_t i = 0; i < parser_.arguments().size(); ++i) words.push_back(parser_.text(i));
  RespCommands::run(*this, words);
  if (keyspace_ != nullptr) greeted_ = true;
  if (!writing_) forget_puts();
}

// One of the requests that the tenant may have in flight, for the current command.
bool RespSession::take_slot() {
  if (access_.use == nullptr || slot_.share) return true;
  slot_ = {.tenant = access_.use, .share = access_.use->requests.take(1)};
  if (slot_.share) return true;
  access_.use->refused.add();
  context_.node.counters.answered_busy.add();
  return false;
}

void RespSession::forget_puts() {
  slot_ = {};
  write_timer_.disarm();
  for (const auto& put : std::exchange(puts_, {})) put->abort();
  refusal_.clear();
}

// ---- Answers, in order ----

void RespSession::pump() {
  if (std::exchange(in_pump_, true)) return;
  for (bool more = true; more && connection_->open();) {
    start_reads();
    more = send_replies();
    if (command_waits_ && replies_.empty()) {
      command_waits_ = false;
      run_command();
      more = true;
    }
    if (connection_->held() && takes_commands()) {
      connection_->resume();
      parse();
      more = true;
    }
  }
  in_pump_ = false;
  if (connection_->open() && !held_.hold(parser_.bytes_held(), commands_)) return close(net::kTooMuchUnfinished);
  if (quits_ && replies_.empty() && connection_->open()) {
    const bool broken = !parser_.problem().empty();
    return connection_->close_after_flush(broken ? Error{Code::kCorrupt, 0, "a RESP client broke the protocol"}
                                                 : Error{Code::kUnavailable, 0, "a RESP client said QUIT"});
  }
  connection_->flush();
}

// As long as little is pinned and its turn is not over, for values that are looked for, wait behind others or are being
// sent.
void RespSession::start_reads() {
  for (Reply& reply : replies_) {
    if (reply.answer == Answer::kText) continue;
    if (late_ || starved(reply)) return;
    while (reply.reads.size() < kWindow && reply.sent + reply.reads.size() < reply.keys.size()) {
      if (pins_.used() > 0 && (pins_.used() >= kAheadBytes || connection_->congested())) return;
      reply.reads.push_back(new_read(reply, reply.sent + reply.reads.size()));
      reply.reads.back()->begin([this] { schedule(); });
      const bool last = reply.sent + reply.reads.size() == reply.keys.size() && &reply == &replies_.back();
      if ((!last || has_unparsed()) && turn_is_over()) return;
    }
  }
}

std::shared_ptr<RespRead> RespSession::new_read(const Reply& reply, std::size_t key) {
  const bool size_only = reply.answer == Answer::kCount || reply.answer == Answer::kLength;
  return std::make_shared<RespRead>(context_.node, keyspace_, pins_, checks_, reply.keys[key],
                                    size_only ? RespRead::Want::kSize : RespRead::Want::kValue);
}

// Its next value had no room beside those of the same connection, and has not been tried alone.
bool RespSession::starved(const Reply& reply) {
  return !reply.tried_alone && !reply.reads.empty() && reply.reads.front()->done() &&
         reply.reads.front()->code() == Code::kBusy;
}

// Looks for a starved value of the first reply again when nothing else of this connection is pinned: what waits behind
// it gives way. Whether it was begun.
bool RespSession::try_alone(Reply& reply) {
  reply.reads.resize(1);
  for (Reply& other : replies_)
    if (&other != &reply) other.reads.clear();
  if (pins_.used() > 0) return false;  // of what is being sent; its end calls again
  reply.tried_alone = true;
  reply.reads.front() = new_read(reply, reply.sent);
  reply.reads.front()->begin([this] { schedule(); });
  return true;
}

// Queues what is known of the first replies. Whether it got further.
bool RespSession::send_replies() {
  bool progress = false;
  while (!replies_.empty() && connection_->open()) {
    Reply& reply = replies_.front();
    if (reply.answer == Answer::kText) {
      send_text(std::move(reply.text));
    } else {
      progress = send_keys(reply) || progress;
      if (reply.sent < reply.keys.size()) return progress;
    }
    keep_keys(reply, {});
    replies_.pop_front();
    progress = true;
  }
  return progress;
}

bool RespSession::send_keys(Reply& reply) {
  bool progress = false;
  if (reply.answer == Answer::kValues && !std::exchange(reply.begun, true)) {
    wire::Buffer head;
    wire::resp::array(head, reply.keys.size());
    send_text(std::move(head));
  }
  while (!reply.reads.empty() && reply.reads.front()->done()) {
    if (reply.answer == Answer::kValues && connection_->congested()) break;  // what waits is pinned
    if (starved(reply)) {
      if (!try_alone(reply)) break;
      continue;
    }
    const std::shared_ptr<RespRead> read = std::move(reply.reads.front());
    reply.reads.pop_front();
    reply.tried_alone = false;
    ++reply.sent;
    progress = true;
    send_one(reply, read);
  }
  return progress;
}

void RespSession::send_one(Reply& reply, const std::shared_ptr<RespRead>& read) {
  NodeCounters& counters = context_.node.counters;
  const bool found = read->code() == Code::kOk;
  const bool missed = read->code() == Code::kNotFound;
  const auto size = static_cast<std::int64_t>(read->value_bytes());
  (found ? counters.resp_hits : counters.resp_misses).add();
  if (!found && !missed) counters.answered_busy.add();
  if (access_.use != nullptr) (found ? access_.use->records_got : access_.use->records_missed).add();
  wire::Buffer text;
  switch (reply.answer) {
    case Answer::kText: return;
    case Answer::kCount:
      reply.count += found ? 1 : 0;
      if (reply.sent == reply.keys.size()) wire::resp::integer(text, reply.count);
      break;
    case Answer::kLength: wire::resp::integer(text, found ? size : 0); break;
    case Answer::kRange: {
      if (!found && !missed) break;
      std::int64_t first = reply.first < 0 ? std::max<std::int64_t>(reply.first + size, 0) : reply.first;
      std::int64_t last = reply.last < 0 ? std::max<std::int64_t>(reply.last + size, 0) : reply.last;
      last = std::min(last, size - 1);
      const bool backwards = reply.first < 0 && reply.last < 0 && reply.first > reply.last;
      if (!found || size == 0 || backwards || first > last) {
        wire::resp::bulk(text, "");
        break;
      }
      return send_value(read, static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(last - first + 1));
    }
    case Answer::kValue:
    case Answer::kValues:
      if (found) return send_value(read, 0, read->value_bytes());
      if (missed || reply.answer == Answer::kValues) wire::resp::nil(text, version_);
      break;
  }
  const bool fails = !found && !missed && (reply.answer == Answer::kValue || reply.answer == Answer::kRange);
  if (fails) wire::resp::error(text, why_not_read(read->code()));
  if (!text.empty()) send_text(std::move(text));
}

// Straight from the pool, pinned until the kernel has it.
void RespSession::send_value(const std::shared_ptr<RespRead>& read, std::uint64_t first, std::uint64_t bytes) {
  net::Outgoing message;
  wire::resp::bulk_head(message.head, bytes);
  message.body = read->pieces(first, bytes);
  message.body.push_back(as_bytes(kEndOfLine));
  message.on_done = [this, read] {
    read->give_up_pins();
    if (!replies_.empty()) schedule();
  };
  context_.node.counters.resp_bytes_sent.add(bytes);
  if (access_.use != nullptr) access_.use->bytes_sent.add(bytes);
  connection_->send(std::move(message));
}

void RespSession::keep_keys(Reply& reply, std::vector<std::string> keys) {
  kept_key_bytes_ -= reply.key_bytes;
  context_.node.net.owned_bytes.sub(reply.key_bytes);
  reply.keys = std::move(keys);
  reply.key_bytes = 0;
  for (const std::string& key : reply.keys) reply.key_bytes += sizeof key + key.size();
  kept_key_bytes_ += reply.key_bytes;
  context_.node.net.owned_bytes.add(reply.key_bytes);
}

void RespSession::send_text(wire::Buffer text) {
  connection_->send({.head = std::move(text), .body = {}, .on_done = {}});
}

// Texts that follow each other share one.
wire::Buffer& RespSession::answer() {
  if (replies_.empty() || replies_.back().answer != Answer::kText || replies_.back().text.size() > kReadAheadBytes)
    replies_.emplace_back();
  return replies_.back().text;
}

void RespSession::answer_error(std::string_view text) { wire::resp::error(answer(), text); }
void RespSession::answer_simple(std::string_view text) { wire::resp::simple(answer(), text); }
void RespSession::answer_nil() { wire::resp::nil(answer(), version_); }
void RespSession::answer_integer(std::int64_t value) { wire::resp::integer(answer(), value); }
void RespSession::answer_bulk(std::string_view text) { wire::resp::bulk(answer(), text); }

}  // namespace kvd::node
