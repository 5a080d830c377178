#include "node/session.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "block/schema.h"
#include "net/address.h"
#include "node/leavers.h"
#include "node/resp_keyspace.h"

namespace kvd::node {
namespace {

constexpr std::size_t kHelloBytesMax = 1024;
constexpr std::size_t kRemovedAtOnce = 512;  // records: 0.1 ms of the loop at 210 ns each

// For browsers, curl and probes that were pointed at the wrong port.
constexpr std::string_view kHttpAnswer =
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    "This is a kvdepot port: it speaks the kvdepot protocol. Metrics and health are on the --http address.\n";

bool looks_like_http(Bytes bytes) {
  const std::string_view text = as_text(bytes);
  return std::ranges::any_of(std::array{"GET", "HEA", "POS", "PUT", "OPT", "DEL"},
                             [text](const char* verb) { return text.starts_with(verb); });
}

net::ConnectionOptions connection_options(const NodeContext& context) {
  net::ConnectionOptions options;
  options.meta_bytes_max = kHelloBytesMax;
  options.stall_limit = context.limits.stall_limit;
  options.progress_bytes_min = context.limits.progress_bytes_min;
  options.owned_bytes_max = context.limits.reply_bytes_max;
  options.owned_bytes_all_max = context.limits.reply_bytes_all_max;
  options.shaper = context.shaper;
  options.turns = context.turns;
  options.messages = &context.messages;
  options.movers = context.movers;
  options.message_memory = &context.message_memory;
  return options;
}

bool is_new_request(wire::Opcode opcode) {
  return opcode == wire::Opcode::kMatch || opcode == wire::Opcode::kGet || opcode == wire::Opcode::kPut ||
         opcode == wire::Opcode::kRemove;
}

std::string printable(std::string text) {
  std::ranges::replace_if(text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace

Session::Session(NodeContext& context, std::uint64_t number, std::unique_ptr<io::Stream> stream, OnClosed on_closed)
    : context_(context),
      number_(number),
      on_closed_(std::move(on_closed)),
      peer_host_(net::peer_host(stream->fd())),
      stranger_(context, [this](const Error& why) { close(why); }),
      holdings_(std::make_unique<Holdings>(context)),
      pins_(holdings_->pins),
      lent_(holdings_->lent),
      kept_(holdings_->kept),
      kept_keys_(holdings_->kept_keys),
      op_keys_(holdings_->op_keys),
      views_(holdings_->views),
      unfinished_(context.unfinished.bytes_max() / 100 * context.limits.connection_percent_max, context.unfinished),
      handshake_timer_(context.loop, [this] { close(Error{Code::kTimeout, 0, "no HELLO came"}); }),
      refusal_timer_(context.loop, [this] { say_unauthorized(wire::Opcode::kAuthReply); }),
      pump_timer_(context.loop, [this] { pump(); }),
      window_slices_(context.slices, [this] { return copy_next(); }),
      doubt_timer_(context.loop, [this] { count_corrupt(); }),
      match_slices_(context.slices, [this] { return match_next(); }),
      remove_slices_(context.slices, [this] { return remove_next(); }),
      checker_(context.slices, context.verified_at_once, context.store),
      arena_slices_(context.slices, [this] { return take_next(); }),
      taken_timer_(context.loop, [this] { on_taken_timer(); }) {
  auto switching = std::make_unique<net::RingStream>(std::move(stream));
  stream_ = switching.get();
  connection_ = std::make_unique<net::Connection>(context.loop, static_cast<net::MessageHandler&>(*this), context.net,
                                                  std::move(switching), connection_options(context));
  pins_.on_room = [this] { schedule_pump(); };
  pins_.taken = [this] { return connection_->taken_bytes() + views_.given_back_bytes(); };
}

Session::~Session() {
  connection_.reset();  // its queue gives bodies back to the operations
  for (RunningGet& get : gets_) get.op->abort();
  for (auto& [id, put] : puts_) put.op->abort();
  context_.counters.ops.sub(gets_.size() + puts_.size());
  for (const Doubt& doubt : doubts_) context_.counters.put_corrupt.add(doubt.slabs);
  context_.leases.release_all(number_);
  if (copying_) drop_copying(*copying_->op);  // its operation has shares of the holdings
  waits_for_window_ = false;
  // What they hold is given back to the holdings.
  matches_.clear();
  removes_.clear();
  checker_.clear();
  puts_.clear();
  gets_.clear();
  context_.leavers.take(std::move(holdings_));
}

Status Session::start() {
  // A handshake is paid for before anybody is known, whoever may come in.
  if (!context_.gate.open() || connection_->stream().is_secure()) {
    if (Status taken = stranger_.take(connection_->stream()); !taken) return taken;
  }
  handshake_timer_.arm_in(context_.limits.introduction_limit(connection_->stream().is_secure()));
  return connection_->start();
}

wire::Buffer Session::farewell(const Error& why, Bytes first_bytes) {
  if (why.code == Code::kStale && !greeted_) {
    return wire::error_frame(wire::Opcode::kHelloReply, 0, Code::kStale, "this depot speaks version 1 of the protocol");
  }
  if (why.code != Code::kInvalid || !looks_like_http(first_bytes)) return {};
  const Bytes answer = as_bytes(kHttpAnswer);
  return {answer.begin(), answer.end()};
}

Status Session::on_message(const wire::Header& header, Bytes meta) {
  if (wire::is_response(header.opcode)) return fail(Code::kCorrupt, "a response where a request belongs");
  if (header.opcode == wire::Opcode::kHello) return on_hello(header, meta);
  if (header.opcode == wire::Opcode::kAuth) return on_auth(header, meta);
  if (!greeted_) return fail(Code::kCorrupt, "a request before HELLO");
  if (header.request_id == 0 || header.status != Code::kOk) return fail(Code::kCorrupt, "a request without an id");
  return on_request(header, meta);
}

Status Session::on_request(const wire::Header& header, Bytes meta) {
  if (context_.gate.expired(connection_->stream().peer_certificate())) {
    context_.gate.refuse(peer_host_, "expired certificate");
    return fail(Code::kUnavailable, "the client's certificate has expired");
  }
  if (identity_ == nullptr) return dispatch(header, meta);
  if (context_.gate.expired(*identity_)) {
    context_.gate.refuse(peer_host_, *identity_, "expired");
    return fail(Code::kUnavailable, "the client's credential has expired");
  }
  if (may(header.opcode)) {
    if (is_new_request(header.opcode)) tenant_->accepted.add();
    return dispatch(header, meta);
  }
  context_.gate.forbid(peer_host_, identity_.get(), "a request without the right to it");
  tenant_->refused.add();
  if (wire::reply_of(header.opcode) == header.opcode) return {};  // CHECK has no answer
  return refuse(header, {Code::kInvalid, 0, "the credential does not allow this"});
}

Status Session::dispatch(const wire::Header& header, Bytes meta) {
  using wire::Opcode;
  const bool is_new = header.opcode == Opcode::kOpen || is_new_request(header.opcode);
  if (is_new && context_.draining) return refuse(header, {Code::kUnavailable, 0, "the depot is shutting down"});
  switch (header.opcode) {
    case Opcode::kOpen: return on_open(header, meta);
    case Opcode::kMatch: return on_match(header, meta);
    case Opcode::kGet: return on_get(header, meta);
    case Opcode::kPut: return on_put(header, meta);
    case Opcode::kPutData: return on_put_data(header, meta);
    case Opcode::kPutArena: return on_put_arena(header, meta);
    case Opcode::kCancel: return on_cancel(header, meta);
    case Opcode::kRemove: return on_remove(header, meta);
    case Opcode::kUnpin: return on_unpin(header, meta);
    case Opcode::kStats: return on_stats(header, meta);
    case Opcode::kPing: return on_ping(header, meta);
    case Opcode::kCheck: return on_check(header, meta);
    case Opcode::kClose: return on_close(header, meta);
    case Opcode::kRelease: return on_release(header, meta);
    default: return fail(Code::kCorrupt, "an unknown request");
  }
}

Status Session::on_hello(const wire::Header& header, Bytes meta) {
  const Result<wire::Hello> hello = wire::decode<wire::Hello>(header, meta);
  if (!hello) return fail(hello.error());
  if (greeted_ || awaits_token_ || refusal_timer_.armed()) return fail(Code::kCorrupt, "HELLO came twice");
  peer_name_ = printable(hello->name);
  if (hello->version_min > wire::kVersion || hello->version_max < wire::kVersion) {
    const Error why{Code::kStale, 0, "this depot speaks version 1 of the protocol"};
    static_cast<void>(refuse(wire::Opcode::kHelloReply, 0, why));
    connection_->close_after_flush(why);
    return {};
  }
  context_.log.debug(fmt::format("connection {}: this is '{}'", number_, peer_name_));
  puts_in_parts_ = (hello->features & wire::kFeaturePutParts) != 0;
  if (!context_.gate.open()) return on_stranger(header, *hello);
  greeted_ = true;
  stranger_.release();
  handshake_timer_.disarm();
  connection_->set_meta_bytes_max(wire::kMetaBytesMax);
  const std::uint64_t given = make_memory(hello->features);
  let_in(header, given);
  offer(given);
  return {};
}

void Session::let_in(const wire::Header& hello, std::uint64_t features) {
  static_cast<void>(reply(hello, wire::HelloReply{.version = wire::kVersion,
                                                  .features = features | (puts_in_parts_ ? wire::kFeaturePutParts : 0),
                                                  .store_uuid = context_.store.uuid(),
                                                  .boot_epoch = context_.store.boot_epoch(),
                                                  .keys_max = kKeysPerRequestMax,
                                                  .ops_max = context_.limits.ops_max,
                                                  .server = "kvdepot " KVD_VERSION}));
}

Status Session::on_open(const wire::Header& header, Bytes meta) {
  const Result<wire::Open> open = wire::decode<wire::Open>(header, meta);
  if (!open) return undecodable(header, open.error());
  // Not put right here: the client seeds checksums with keys that its tenant is part of.
  if (identity_ != nullptr && open->ns.tenant != identity_->tenant) {
    context_.gate.forbid(peer_host_, identity_.get(), "a namespace of another tenant");
    return refuse(header, {Code::kInvalid, 0, "the credential is of another tenant"});
  }
  if (open->ns.fingerprint.starts_with(RespKeyspace::kReserved)) {
    return refuse(header, {Code::kInvalid, 0, "a fingerprint that is kept for Redis clients"});
  }
  if (const Status checked = block::check_namespace(open->ns); !checked) return refuse(header, checked.error());
  const Result<store::NamespaceHandle> handle = context_.store.open_namespace(open->ns);
  if (!handle) return refuse(header, handle.error());
  auto use = std::make_shared<const NamespaceUse>(context_.store, *handle);
  auto at = std::ranges::find_if(namespaces_, [&](const auto& known) { return known && known->handle() == *handle; });
  if (at == namespaces_.end()) {
    at = std::ranges::find_if(namespaces_, [](const auto& known) { return known == nullptr; });
    if (at == namespaces_.end() && namespaces_.size() >= context_.limits.namespaces_max) {
      return refuse(header, {Code::kNoSpace, 0, "too many namespaces are open on this connection: close some"});
    }
    if (at == namespaces_.end()) at = namespaces_.emplace(at);
    *at = std::move(use);
  }
  return reply(header, wire::OpenReply{static_cast<std::uint32_t>(at - namespaces_.begin())});
}

// Requests under way have their own share of the namespace.
Status Session::on_close(const wire::Header& header, Bytes meta) {
  const Result<wire::Close> request = wire::decode<wire::Close>(header, meta);
  if (!request) return fail(request.error());
  if (request->ns < namespaces_.size()) namespaces_[request->ns].reset();
  return {};
}

Status Session::on_remove(const wire::Header& header, Bytes meta) {
  const Result<wire::Remove> remove = wire::decode<wire::Remove>(header, meta);
  if (!remove) return undecodable(header, remove.error());
  const Result<SharedNamespace> ns = namespace_of(remove->ns);
  if (!ns) return refuse(header, ns.error());
  if (context_.store.recovering()) return refuse(header, {Code::kBusy, 0, "the depot is recovering: remove it later"});
  if (remove->shards.size() * remove->keys.count() > context_.limits.lookups_max) {
    return refuse(header, {Code::kInvalid, 0, "too many shards x keys in one request"});
  }
  if (removals_ >= context_.limits.ops_max) {
    return refuse(header, {Code::kBusy, 0, "too many unfinished requests on this connection"});
  }
  Result<KeyShare> share = take_keys(remove->keys.count());
  if (!share) return refuse(header, share.error());
  Result<TenantSlot> slot = take_slot();
  if (!slot) return refuse(header, slot.error());
  context_.counters.requests_remove.add();
  RunningRemove running{.slot = std::move(*slot),
                        .header = header,
                        .ns = *ns,
                        .keys = {},
                        .shards = remove->shards,
                        .groups = remove->groups,
                        .share = std::move(*share)};
  const block::NamespaceHash& hash = context_.store.namespace_hash((*ns)->handle());
  running.keys.reserve(remove->keys.count());
  for (std::size_t i = 0; i < remove->keys.count(); ++i) running.keys.push_back(block::key_at(hash, remove->keys, i));
  ++removals_;
  removes_.push_back(std::move(running));
  if (removes_.size() > 1 || remove_next()) remove_slices_.enter();
  return {};
}

// A slice of its records; true when none is left.
bool Session::remove_some(RunningRemove& remove) {
  const std::size_t blocks = remove.keys.size() / remove.groups.size();
  for (std::size_t lookups = 0; remove.next < remove.keys.size() && lookups < kRemovedAtOnce; ++remove.next) {
    const std::uint16_t group = remove.groups[remove.next / blocks];
    for (const std::uint16_t shard : remove.shards) {
      remove.removed += context_.store.remove(remove.ns->handle(), {remove.keys[remove.next], shard, group});
    }
    lookups += remove.shards.size();
  }
  return remove.next == remove.keys.size();
}

// Also told when none was here: an earlier REMOVE of them may not be written yet. Returns whether there is more to do.
bool Session::remove_next() {
  if (remove_some(removes_.front())) {
    RunningRemove done = std::move(removes_.front());
    removes_.pop_front();
    context_.store.await_removals([self = std::weak_ptr(self_), header = done.header, removed = done.removed,
                                   slot = std::move(done.slot)](Status written) {
      if (const auto session = self.lock()) (*session)->removal_written(header, removed, written);
    });
  }
  return !removes_.empty();
}

void Session::removal_written(const wire::Header& request, std::uint32_t removed, const Status& written) {
  --removals_;
  static_cast<void>(written ? reply(request, wire::RemoveReply{removed}) : refuse(request, written.error()));
  connection_->flush();
}

Status Session::on_unpin(const wire::Header& header, Bytes meta) {
  const Result<wire::Unpin> unpin = wire::decode<wire::Unpin>(header, meta);
  if (!unpin) return undecodable(header, unpin.error());
  if (!context_.leases.release(number_, unpin->lease)) {
    return refuse(header, {Code::kNotFound, 0, "no such lease: it expired or belongs to another connection"});
  }
  return reply(header, wire::UnpinReply{});
}

Status Session::on_stats(const wire::Header& header, Bytes meta) {
  if (const auto stats = wire::decode<wire::Stats>(header, meta); !stats) return fail(stats.error());
  const std::string json = context_.stats_json();
  return reply(header, wire::StatsReply{json});
}

Status Session::on_ping(const wire::Header& header, Bytes meta) {
  if (const auto ping = wire::decode<wire::Ping>(header, meta); !ping) return fail(ping.error());
  return reply(header, wire::PingReply{});
}

Status Session::on_cancel(const wire::Header& header, Bytes meta) {
  if (const auto cancel = wire::decode<wire::Cancel>(header, meta); !cancel) return fail(cancel.error());
  const Error why{Code::kCancelled, 0, "cancelled by the client"};
  end_get(header.request_id, why);
  end_put(header.request_id, why);
  forget_corrupt(header.request_id);
  return {};
}

// Has no answer, so what cannot be served is left: the client reports it again when it is hit again.
Status Session::on_check(const wire::Header& header, Bytes meta) {
  const Result<wire::Check> check = wire::decode<wire::Check>(header, meta);
  if (!check && check.error().code != Code::kInvalid) return fail(check.error());
  if (!check) return {};
  Result<SharedNamespace> ns = namespace_of(check->ns);
  const GroupSchema* const schema = ns ? context_.store.schema((*ns)->handle(), check->group) : nullptr;
  if (schema == nullptr) return {};
  const std::uint64_t bytes = block::shape_of(*schema, !check->keys.native).record_bytes();
  const block::NamespaceHash& hash = context_.store.namespace_hash((*ns)->handle());
  std::vector<block::RecordId> ids;
  ids.reserve(check->keys.count());
  for (std::size_t i = 0; i < check->keys.count(); ++i)
    ids.push_back({block::key_at(hash, check->keys, i), check->shard, check->group});
  const auto rest = std::span(ids).subspan(checker_.verify(**ns, ids, bytes));
  Result<KeyShare> share = take_keys(rest.size());
  if (share) checker_.enter(std::move(*ns), rest, bytes, std::move(*share));
  return {};
}

Result<SharedNamespace> Session::namespace_of(std::uint32_t ns) const {
  if (ns >= namespaces_.size() || namespaces_[ns] == nullptr)
    return fail(Code::kNotFound, "no such namespace on this connection: OPEN it first");
  return namespaces_[ns];
}

template <class M>
Status Session::reply(const wire::Header& request, const M& message, std::uint32_t items) {
  const wire::Header header{.flags = wire::kFlagLast, .request_id = request.request_id, .items = items};
  connection_->send({.head = wire::frame(header, message), .body = {}, .on_done = {}});
  return {};
}

Status Session::refuse(const wire::Header& request, const Error& why) {
  return refuse(wire::reply_of(request.opcode), request.request_id, why);
}

Status Session::refuse(wire::Opcode opcode, std::uint64_t id, const Error& why) {
  if (why.code == Code::kBusy) context_.counters.answered_busy.add();
  if (why.code == Code::kInvalid) context_.counters.answered_invalid.add();
  connection_->send({.head = wire::error_frame(opcode, id, why.code, why.what), .body = {}, .on_done = {}});
  return {};
}

Status Session::undecodable(const wire::Header& request, const Error& why) {
  if (why.code != Code::kInvalid) return fail(why);
  return refuse(request, why);
}

}  // namespace kvd::node
