#include "client/channel.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "net/local_socket.h"

namespace kvd::client {
namespace {

constexpr Duration kStable = std::chrono::seconds(1);  // ready for this long: the next loss backs off from the start

// What a failed HELLO means, in words that do not depend on what the other side sent.
Error hello_error(Code status) {
  if (status == Code::kStale) return {Code::kStale, 0, "the depot speaks another version of the protocol"};
  if (status == Code::kBusy || status == Code::kNoSpace) return {status, 0, "the depot takes no more connections"};
  if (status == Code::kInvalid) return {Code::kUnavailable, 0, "the depot refused the token, or wants one"};
  return {status, 0, "the depot refused the connection"};
}

// Errors of net that say "the peer": here it has a name.
Error named(const Error& why) {
  if (why.code == Code::kInvalid) return {Code::kInvalid, 0, "the endpoint does not speak the kvdepot protocol"};
  if (why.code == Code::kStale) return {Code::kStale, 0, "the depot speaks another version of the protocol"};
  return why;
}

}  // namespace

Channel::Channel(io::Loop& loop, ChannelUser& user, const NamespaceTable& namespaces, net::NetCounters& counters,
                 ChannelOptions options)
    : loop_(loop),
      user_(user),
      namespaces_(namespaces),
      counters_(counters),
      options_(std::move(options)),
      resolver_(loop),
      dialer_(options_.make_dialer ? options_.make_dialer(loop) : std::make_unique<net::SocketDialer>(loop)),
      timer_(loop, [this] { on_timer(); }),
      backoff_(options_.seed),
      reopen_timer_(loop, [this] { on_reopen_timer(); }),
      reopen_backoff_(options_.seed) {}

Channel::~Channel() { stop(); }

void Channel::start() {
  KVD_CHECK(state_ == State::kIdle);
  state_ = State::kBackoff;
  timer_.arm(loop_.now());
}

void Channel::stop() {
  state_ = State::kIdle;
  resolver_.cancel();
  dialer_->cancel();
  timer_.disarm();
  reopen_timer_.disarm();
  connection_.reset();
  memory_.reset();
  keeper_.reset();
  arena_.reset();
}

void Channel::reset(const Error& why) {
  if (connection_ != nullptr) connection_->close(why);
}

void Channel::hurry() {
  if (state_ == State::kBackoff) timer_.arm(loop_.now());
}

void Channel::dial() {
  state_ = State::kDialing;
  timer_.arm_in(kHandshakeLimit);
  resolver_.resolve(options_.address, [this](Result<net::Endpoint> endpoint) {
    if (!endpoint) return lost({Code::kUnavailable, 0, endpoint.error().what});
    const bool local = takes_memory() && !avoid_local_socket_ && !options_.token;
    const auto beside = local ? net::local_socket_of(*endpoint) : std::nullopt;
    if (!beside) return dial_port(*endpoint);
    dialer_->connect(*beside, kNever, [this, port = *endpoint](Result<std::unique_ptr<io::Stream>> stream) {
      if (!stream || !net::is_same_user((*stream)->fd())) return dial_port(port);
      on_local_socket_ = true;
      on_dialed(std::move(stream));
    });
  });
}

void Channel::dial_port(const net::Endpoint& endpoint) {
  dialer_->connect(endpoint, kNever,
                   [this](Result<std::unique_ptr<io::Stream>> stream) { on_dialed(std::move(stream)); });
}

void Channel::on_dialed(Result<std::unique_ptr<io::Stream>> stream) {
  if (!stream) return lost(stream.error());
  if (options_.token) {
    Result<std::string> token = options_.token();
    if (!token) return lost({Code::kUnavailable, token.error().sys_errno, token.error().what});
    token_ = std::move(*token);
  }
  const net::ConnectionOptions options{.queue_bytes_high = options_.queue_bytes_high,
                                       .takes_descriptors = takes_memory()};
  net::MessageHandler& self = *this;
  auto switching = std::make_unique<net::RingStream>(std::move(*stream));
  stream_ = switching.get();
  connection_ = std::make_unique<net::Connection>(loop_, self, counters_, std::move(switching), options);
  if (const Status started = connection_->start(); !started) return lost(started.error());
  state_ = State::kHello;
  wire::Hello hello;
  hello.name = options_.name;
  hello.features = features();
  connection_->send({.head = wire::frame({}, hello), .body = {}, .on_done = {}});
  connection_->flush();
}

void Channel::on_timer() {
  if (state_ == State::kBackoff) return dial();
  lost({Code::kTimeout, 0, state_ == State::kDialing ? "connecting took too long" : "the depot did not answer HELLO"});
}

void Channel::on_closed(const Error& why) { lost(named(why)); }

// The present attempt or connection is over. Called from the loop, never from inside on_message().
void Channel::lost(const Error& why) {
  // Unmapping what was read of a large pool takes long: whoever waits is told before.
  const SharedMapping memory = std::move(memory_);
  keeper_.reset();
  arena_.reset();
  const bool was_ready = state_ == State::kReady;
  if (was_ready && loop_.now() - ready_since_ >= kStable) backoff_.reset();
  resolver_.cancel();
  dialer_->cancel();
  connection_.reset();
  reopen_timer_.disarm();
  handles_.clear();
  avoid_local_socket_ = std::exchange(on_local_socket_, false) && !was_ready;
  state_ = State::kBackoff;
  timer_.arm_in(backoff_.next());
  user_.on_lost(*this, why, was_ready);
}

Signs Channel::signs() const {
  if (connection_ == nullptr) return {.moved = Time::min()};
  const Time bodies = std::max(connection_->last_received(), body_at_);
  return {.moved = std::max(bodies, connection_->last_sent()), .bodies = bodies, .word = word_at_};
}

Status Channel::on_message(const wire::Header& header, Bytes meta) {
  if (state_ == State::kHello) return on_hello(header, meta);
  if (state_ == State::kAuth) return on_auth_reply(header, meta);
  if (state_ == State::kMemory) return on_memory(header, meta);
  if (state_ == State::kKeeper) return on_keeper(header);
  if (state_ == State::kArena) return on_arena(header, meta);
  if (state_ == State::kRings) return on_rings(header, meta);
  if (header.opcode == wire::Opcode::kOpenReply) return on_open_reply(header, meta);
  return user_.on_message(*this, header, meta);
}

Status Channel::on_hello(const wire::Header& header, Bytes meta) {
  if (header.opcode != wire::Opcode::kHelloReply) return fail(Code::kCorrupt, "the depot did not answer HELLO first");
  if (header.status != Code::kOk) {
    user_.on_refused(header.status, wire::error_text(meta));
    connection_->close(hello_error(header.status));
    return {};
  }
  const auto reply = wire::decode<wire::HelloReply>(header, meta);
  if (!reply) return fail(reply.error());
  if (reply->version != wire::kVersion) {
    connection_->close(hello_error(Code::kStale));
    return {};
  }
  if (reply->ops_max == 0) return fail(Code::kCorrupt, "the depot takes no requests");  // made anew, as any other
  credits_ = reply->ops_max;
  if (Status agreed = agree(reply->features); !agreed) return agreed;
  takes_put_parts_ = (reply->features & wire::kFeaturePutParts) != 0;
  if ((reply->features & wire::kFeatureToken) == 0) return let_in();
  says_features_later_ = (reply->features & wire::kFeatureAuthFeatures) != 0;
  state_ = State::kAuth;
  connection_->send({.head = wire::frame({}, wire::Auth{token_}), .body = {}, .on_done = {}});
  return {};
}

// The depot's answer to what memory this client would take.
Status Channel::agree(std::uint64_t given) {
  if ((given & ~features()) != 0) return fail(Code::kCorrupt, "the depot does what it was not asked for");
  gives_memory_ = (given & wire::kFeatureSharedMemory) != 0;
  gives_keeper_ = (given & wire::kFeatureKeep) != 0;
  gives_arena_ = (given & wire::kFeatureArena) != 0;
  gives_rings_ = (given & wire::kFeatureRings) != 0;
  return {};
}

Status Channel::on_auth_reply(const wire::Header& header, Bytes meta) {
  if (header.opcode != wire::Opcode::kAuthReply) return fail(Code::kCorrupt, "the depot did not answer AUTH first");
  if (header.status != Code::kOk) {
    user_.on_refused(header.status, wire::error_text(meta));
    connection_->close(hello_error(header.status));
    return {};
  }
  const auto reply = wire::decode<wire::AuthReply>(header, meta);
  if (!reply) return fail(reply.error());
  if (reply->features.has_value() != says_features_later_) {
    return fail(Code::kCorrupt, "the depot's answer to the token is not what was agreed on");
  }
  if (reply->features) {
    if (Status agreed = agree(*reply->features); !agreed) return agreed;
  }
  return let_in();
}

Status Channel::let_in() {
  if (gives_memory_ && memory_ == nullptr) {
    state_ = State::kMemory;
  } else if (gives_keeper_ && keeper_ == nullptr) {
    state_ = State::kKeeper;
  } else if (gives_arena_ && arena_ == nullptr) {
    state_ = State::kArena;
  } else if (gives_rings_ && !stream_->uses_rings()) {
    state_ = State::kRings;
  } else {
    return become_ready();
  }
  return {};
}

// What was agreed upon with HELLO. Where it does not work out the next attempt does without.
Status Channel::on_memory(const wire::Header& header, Bytes meta) {
  if (header.opcode != wire::Opcode::kMemory) return fail(Code::kCorrupt, "the depot did not give its memory first");
  const auto given = wire::decode<wire::Memory>(header, meta);
  if (!given) return fail(given.error());
  auto memory = net::SharedMemory::map(connection_->take_descriptor(), given->bytes);
  if (memory) {
    memory_ = std::move(*memory);
    return let_in();
  }
  options_.shared_memory = false;
  connection_->close({Code::kUnavailable, memory.error().sys_errno, memory.error().what});
  return {};
}

// A descriptor that is held is all that it is for. A process that may open no more files gets none, and does without.
Status Channel::on_keeper(const wire::Header& header) {
  if (header.opcode != wire::Opcode::kKeeper) return fail(Code::kCorrupt, "the depot did not give a keeper first");
  io::PrivateFd descriptor = connection_->take_descriptor();
  if (!descriptor.ok()) {
    keep_ = false;
    connection_->close({Code::kUnavailable, 0, "the keeper's descriptor did not arrive"});
    return {};
  }
  keeper_ = std::make_shared<const io::PrivateFd>(std::move(descriptor));
  return let_in();
}

Status Channel::renew_memory() {
  auto memory = memory_->again();
  if (!memory) return fail(memory.error());
  memory_ = std::move(*memory);
  return {};
}

Status Channel::on_arena(const wire::Header& header, Bytes meta) {
  if (header.opcode != wire::Opcode::kArena) return fail(Code::kCorrupt, "the depot did not give an arena first");
  const auto given = wire::decode<wire::Arena>(header, meta);
  if (!given) return fail(given.error());
  auto arena = net::Arena::map(connection_->take_descriptor(), given->bytes);
  if (arena) {
    arena_ = std::make_shared<ArenaRoom>(std::move(*arena));
    return let_in();
  }
  options_.arena = false;
  connection_->close({Code::kUnavailable, arena.error().sys_errno, arena.error().what});
  return {};
}

// From here on both sides send through the rings.
Status Channel::on_rings(const wire::Header& header, Bytes meta) {
  if (header.opcode != wire::Opcode::kRings) return fail(Code::kCorrupt, "the depot did not give its rings first");
  const auto given = wire::decode<wire::Rings>(header, meta);
  if (!given) return fail(given.error());
  auto rings = net::RingMemory::map(connection_->take_descriptor(), given->bytes);
  if (rings) {
    stream_->use(std::move(*rings), net::RingStream::Side::kClient);
    return let_in();
  }
  options_.rings = false;
  connection_->close({Code::kUnavailable, rings.error().sys_errno, rings.error().what});
  return {};
}

// What this client asks for, of which the depot may agree to some.
std::uint64_t Channel::features() const noexcept {
  return (options_.shared_memory ? wire::kFeatureSharedMemory : 0) |
         (options_.shared_memory && keep_ ? wire::kFeatureKeep : 0) | (options_.rings ? wire::kFeatureRings : 0) |
         (options_.arena ? wire::kFeatureArena : 0) | (options_.put_parts ? wire::kFeaturePutParts : 0) |
         (token_.empty() ? 0 : wire::kFeatureToken) |
         (token_.empty() || !takes_memory() ? 0 : wire::kFeatureAuthFeatures);
}

Status Channel::become_ready() {
  state_ = State::kReady;
  ready_since_ = loop_.now();
  timer_.disarm();
  reopen_backoff_.reset();
  open_namespaces();
  user_.on_ready(*this);
  return {};
}

void Channel::open_namespaces() {
  if (!ready()) return;
  for (const auto& entry : namespaces_.all()) {
    if (handles_.try_emplace(entry->id).second) send_open(*entry);
  }
  connection_->flush();
}

void Channel::send_open(const NamespaceTable::Entry& entry) {
  const wire::Header header{.request_id = kOpenIds | entry.id};
  connection_->send({.head = wire::frame(header, wire::Open{entry.ns}), .body = {}, .on_done = {}});
}

void Channel::ask_again(NamespaceId ns) {
  const auto found = handles_.find(ns);
  if (!ready() || found == handles_.end() || found->second.code != Code::kUnavailable) return;
  const NamespaceTable::SharedEntry entry = namespaces_.find(ns);
  if (entry == nullptr) return;
  found->second = {};
  send_open(*entry);
  connection_->flush();
}

void Channel::on_reopen_timer() {
  std::vector<NamespaceId> waiting;  // sending may end the connection, and with it all handles
  for (const auto& [ns, handle] : handles_)
    if (handle.code == Code::kUnavailable) waiting.push_back(ns);
  for (const NamespaceId ns : waiting) ask_again(ns);
}

void Channel::close_namespace(NamespaceId ns) {
  const auto found = handles_.find(ns);
  if (found == handles_.end()) return;
  if (!found->second.answered()) {
    found->second.closing = true;
    return;
  }
  const Handle handle = std::move(found->second);
  handles_.erase(found);
  if (handle.code == Code::kOk && ready()) give_back(handle.number);
}

void Channel::give_back(std::uint32_t handle) {
  const wire::Header header{.request_id = kOpenIds};
  connection_->send({.head = wire::frame(header, wire::Close{handle}), .body = {}, .on_done = {}});
  connection_->flush();
}

Status Channel::on_open_reply(const wire::Header& header, Bytes meta) {
  const auto id = static_cast<NamespaceId>(header.request_id & ~kOpenIds);
  const auto found = handles_.find(id);
  if (header.request_id != (kOpenIds | id) || found == handles_.end() || found->second.answered()) {
    return fail(Code::kCorrupt, "an answer to an OPEN that was not asked");
  }
  Handle& handle = found->second;
  if (header.status == Code::kOk) {
    const auto reply = wire::decode<wire::OpenReply>(header, meta);
    if (!reply) return fail(reply.error());
    handle.code = Code::kOk;
    handle.number = reply->ns;
  } else {
    handle.code = header.status;
    handle.why = wire::error_text(meta);
    if (handle.why.empty()) handle.why = "the depot refused the namespace";
    user_.on_refused(handle.code, handle.why);
    if (handle.code == Code::kUnavailable && !reopen_timer_.armed()) reopen_timer_.arm_in(reopen_backoff_.next());
  }
  if (handle.closing) {
    close_namespace(id);
  } else {
    user_.on_namespace(*this, id);
  }
  return {};
}

const Channel::Handle& Channel::handle(NamespaceId ns) const {
  static const Handle kNotAnswered;
  static const Handle kClosed{.code = Code::kInvalid, .why = "the namespace is closed"};
  const auto found = handles_.find(ns);
  if (found != handles_.end()) return found->second;
  return namespaces_.find(ns) == nullptr ? kClosed : kNotAnswered;
}

}  // namespace kvd::client
