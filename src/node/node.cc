#include "node/node.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error_text.h"
#include "http/server.h"
#include "net/listener.h"
#include "net/movers.h"
#include "net/shaper.h"
#include "net/socket_stream.h"
#include "node/context.h"
#include "node/leavers.h"
#include "node/metrics.h"
#include "node/resp_server.h"
#include "node/session.h"
#include "node/stuck.h"
#include "node/turn_allowance.h"

namespace kvd::node {
namespace {

constexpr std::string_view kHttpScheme = "http://";
constexpr std::string_view kUnixScheme = "unix://";
constexpr Duration kLogPeriod = std::chrono::seconds(10);
constexpr Duration kContentionPoll = std::chrono::milliseconds(50);
constexpr Error kShuttingDown{Code::kUnavailable, 0, "the depot is shutting down"};

// One line for the user: what is wrong with an address that could be read, and what to do.
Status explain(const std::string& address, const Error& error, std::string& why) {
  why = fmt::format("{}: {}", address, error.what);
  if (error.code == Code::kBusy) {
    why += ": stop the program that listens there, or choose another address";
  } else if (error.code == Code::kIo) {
    why += fmt::format(": {}: choose another address", error_text(error.sys_errno));
  } else if (error.code != Code::kInvalid || address.starts_with(kUnixScheme)) {
    why += ": choose another address";
  } else {
    why += ": choose a loopback address of this machine";
    if (!address.starts_with(kHttpScheme)) why += ", a unix socket, or say who may come in: --credentials";
  }
  return fail(error);
}

std::uint64_t percent_of(std::uint64_t bytes, std::uint32_t percent) { return bytes / 100 * percent; }

}  // namespace

class NodeImpl final : public Node {
 public:
  NodeImpl(io::Loop& loop, Log& log, NodeOptions options);
  ~NodeImpl() override;

  Status open(std::string& why);
  Status recover(std::string* why) override;
  [[nodiscard]] std::vector<std::string> addresses() const override { return addresses_; }
  [[nodiscard]] std::vector<std::string> resp_addresses() const override;
  [[nodiscard]] std::string http_address() const override { return http_ ? http_->address() : std::string(); }
  Status adopt(std::unique_ptr<io::Stream> stream) override;
  void set_authority(std::shared_ptr<const auth::Authority> authority) override;
  void judge_certificates() override;
  Status adopt_resp(std::unique_ptr<io::Stream> stream) override;
  void drain(Duration limit, io::Callback on_done) override;
  [[nodiscard]] std::string stats_json() const override { return node::stats_json(figures()); }
  [[nodiscard]] store::Store& store() noexcept override { return *store_; }

 private:
  enum class State : std::uint8_t { kRecovering, kReady, kDraining };

  [[nodiscard]] Figures figures() const;
  [[nodiscard]] http::Response answer(std::string_view path) const;
  [[nodiscard]] std::string recovery_text() const;
  [[nodiscard]] bool serves_all() const;
  [[nodiscard]] store::StoreOptions store_options() const;
  [[nodiscard]] bool gives_memory() const;
  [[nodiscard]] bool lends() const;
  Status bind(std::string& why);
  [[nodiscard]] net::Reach reach_of(const net::Address& address) const;
  Status bind_one(const std::string& text, std::vector<std::unique_ptr<net::Listener>>& listeners, std::string& why);
  [[nodiscard]] Result<std::unique_ptr<io::Stream>> stream_of(io::UniqueFd socket, bool tls) const;
  void bind_local_socket(const net::Listener& port);
  RespServer::Doors resp_doors();
  Status listen(std::string& why);
  void bound_tenants(const auth::Authority& authority);
  void make_context();
  using Adopt = Status (NodeImpl::*)(std::unique_ptr<io::Stream>);
  Status listen_on(const std::vector<std::unique_ptr<net::Listener>>& listeners, Adopt take, std::string& why);
  void on_accept(io::UniqueFd socket, bool tls, Adopt take);
  bool make_room(bool for_resp = false);
  bool close_silent_resp();
  void refused(const Status& adopted);
  [[nodiscard]] std::size_t connections() const { return sessions_.size() + resp_->sessions(); }
  void on_closed(Session& session, const Error& why);
  void ended(const std::string& peer, const std::string& name, const Error& why);
  void tell_room();
  void note_refusal();
  void on_contention();
  void check_drain();
  void on_drain_timer();

  io::Loop& loop_;
  Log& log_;
  const NodeOptions options_;
  const Time started_;
  NodeCounters counters_;
  net::NetCounters net_;
  // Read by the HTTP thread.
  std::atomic<State> state_{State::kRecovering};
  std::atomic<const store::Store*> served_{nullptr};

  auth::Audit bad_peers_{"closed the connection of"};
  RateLimited crowded_{kLogPeriod};
  std::vector<std::unique_ptr<net::Listener>> listeners_;
  std::vector<std::unique_ptr<net::Listener>> resp_listeners_;
  std::vector<std::string> addresses_;
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<net::Shaper> shaper_;
  Budget pinned_;
  Budget lent_;
  Budget kept_;
  Budget kept_keys_;
  std::unique_ptr<Leavers> leavers_;
  Budget unfinished_;
  Budget op_keys_;
  Budget rings_;
  Budget arenas_, windows_;
  TurnAllowance copies_, verified_at_once_;
  Gate gate_;
  std::unique_ptr<Leases> leases_;
  net::SliceLine slices_{loop_}, messages_{loop_}, checks_{loop_};
  net::BodyTurns turns_{loop_};
  net::MessageMemory message_memory_;
  std::unique_ptr<net::Movers> movers_;
  std::unique_ptr<NodeContext> context_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Session>> sessions_;
  std::deque<std::uint64_t> newcomers_;  // by age; those that have said HELLO leave it with the ones before them
  std::uint64_t next_session_ = 1;
  std::unique_ptr<RespServer> resp_;
  io::Timer room_timer_;
  io::Timer contention_timer_;
  bool refused_lately_ = false;

  io::Timer drain_timer_;
  io::Timer drain_poll_;
  Time drain_until_{};
  bool store_draining_ = false;
  io::Callback on_drained_;
  std::unique_ptr<http::HttpServer> http_;  // last: its thread reads the above
};

NodeImpl::NodeImpl(io::Loop& loop, Log& log, NodeOptions options)
    : loop_(loop),
      log_(log),
      options_(std::move(options)),
      started_(loop.now()),
      pinned_(options_.pinned_max(), &counters_.pinned_bytes),
      lent_(percent_of(pinned_.bytes_max(), options_.limits.lent_percent_max)),
      kept_(percent_of(lent_.bytes_max(), options_.limits.kept_percent_max), &counters_.kept_bytes),
      kept_keys_(options_.limits.op_keys_max, &counters_.kept_keys),
      leavers_(std::make_unique<Leavers>(counters_)),
      unfinished_(options_.unfinished_max(), &counters_.unfinished_bytes),
      op_keys_(options_.limits.op_keys_max, &counters_.op_keys),
      rings_(gives_memory() && options_.rings ? options_.limits.rings_max : 0, &counters_.rings),
      arenas_(gives_memory() ? options_.limits.arena_bytes_all_max : 0, &counters_.arena_bytes),
      windows_(gives_memory() ? options_.limits.window_bytes_all_max : 0, &counters_.window_bytes),
      copies_(loop, 4 * options_.limits.copied_at_once),
      verified_at_once_(loop, Checker::kAtOnceBytes),
      gate_(loop, log, counters_, options_),
      message_memory_(options_.limits.message_bytes_all_max, &net_.unfinished_ended),
      room_timer_(loop, [this] { tell_room(); }),
      contention_timer_(loop, [this] { on_contention(); }),
      drain_timer_(loop, [this] { on_drain_timer(); }),
      drain_poll_(loop, [this] { check_drain(); }) {
  pinned_.on_room = [this] { room_timer_.arm(loop_.now()); };
}

NodeImpl::~NodeImpl() {
  http_.reset();
  listeners_.clear();
  resp_listeners_.clear();
  sessions_.clear();
  leavers_.reset();
  resp_.reset();
  leases_.reset();
}

Result<std::unique_ptr<Node>> Node::start(io::Loop& loop, Log& log, const NodeOptions& options, std::string* why) {
  auto node = std::make_unique<NodeImpl>(loop, log, options);
  std::string reason;
  const Status opened = node->open(reason);
  if (why != nullptr) *why = reason;
  if (!opened) return fail(opened.error());
  return node;
}

Status NodeImpl::open(std::string& why) {
  // First: the lock of a unix socket's name may be in that directory.
  if (Status checked = store::Store::check_directory(options_.store, &why); !checked) return checked;
  if (Status bound = bind(why); !bound) return bound;
  Result<std::unique_ptr<store::Store>> store = store::Store::open(loop_, log_, store_options(), &why, options_.disks);
  if (!store) return fail(store.error());
  store_ = std::move(*store);
  if (options_.authority != nullptr) bound_tenants(*options_.authority);
  served_ = store_.get();
  make_context();
  loop_.set_spin(options_.spin);
  if (Status listening = listen(why); !listening) return listening;
  if (!options_.serve_recovering) state_ = State::kReady;
  return {};
}

Status NodeImpl::recover(std::string* why) {
  const Status recovered = store_->recover(why);
  if (!recovered && !context_->draining) return recovered;
  State before = State::kRecovering;
  state_.compare_exchange_strong(before, State::kReady);
  return {};
}

// The pool is made for sharing where somebody could ask for it.
store::StoreOptions NodeImpl::store_options() const {
  store::StoreOptions options = options_.store;
  options.recover_later = options_.serve_recovering;
  options.share_pool = lends() && (options.share_pool || std::ranges::any_of(listeners_, &net::Listener::is_unix));
  return options;
}

// Whether clients of the same host are given memory. Shaping is of bytes sent.
bool NodeImpl::gives_memory() const { return options_.shared_memory && options_.shape_read_bytes_per_s == 0; }

// Whether the pool's may be among it. With credentials there may be tenants that must not see each other's records, now
// or after the next reload: only to whom they allow it.
bool NodeImpl::lends() const {
  return gives_memory() && (options_.authority == nullptr || options_.authority->grants(auth::Right::kPool));
}

// Beside a TCP port. Without it clients of the port are sent bytes. Not where there are tokens to be had: anybody can
// take its name while no depot runs (docs/decisions/0011-memory-and-credentials.md).
void NodeImpl::bind_local_socket(const net::Listener& port) {
  auto listener = port.bind_local_socket(loop_);
  if (listener) {
    listeners_.push_back(std::move(*listener));
  } else {
    log_.warn(fmt::format("{}: no shared memory for clients of this port, they are sent bytes: {}",
                          port.address().text(), error_text(listener.error())));
  }
}

// Other machines may come where everybody has to say who they are.
net::Reach NodeImpl::reach_of(const net::Address& address) const {
  const bool certificates = address.tls && options_.tls->knows_clients();
  const bool known = options_.authority != nullptr || certificates;
  return known || options_.insecure ? net::Reach::kAnyHost : net::Reach::kThisHost;
}

Status NodeImpl::bind_one(const std::string& text, std::vector<std::unique_ptr<net::Listener>>& listeners,
                          std::string& why) {
  const Result<net::Address> address = net::parse_address(text);
  if (!address) {
    why = fmt::format("{}: {}", text, address.error().what);
    return fail(address.error());
  }
  if (address->tls && options_.tls == nullptr) {
    why = fmt::format("{}: a tls:// address needs a certificate: give --tls-cert and --tls-key", text);
    return fail(Code::kInvalid, "a tls:// address needs a certificate");
  }
  Result<std::unique_ptr<net::Listener>> listener = net::Listener::bind(loop_, *address, reach_of(*address));
  if (!listener) return explain(text, listener.error(), why);
  listeners.push_back(std::move(*listener));
  return {};
}

// Takes every address before the store is opened: what is in use is known at once, and health is answered during
// recovery.
Status NodeImpl::bind(std::string& why) {
  for (const std::string& text : options_.listen) {
    if (Status bound = bind_one(text, listeners_, why); !bound) return bound;
    addresses_.push_back(listeners_.back()->address().text());
    const net::Listener& bound = *listeners_.back();
    const bool open = options_.authority == nullptr;  // 0011: also those who may see the pool do not come by it
    if (open && gives_memory() && !bound.is_unix() && !bound.address().tls) bind_local_socket(bound);
  }
  for (const std::string& text : options_.resp)
    if (Status bound = bind_one(text, resp_listeners_, why); !bound) return bound;
  if (options_.http.empty()) return {};
  if (const Status readable = http::HttpServer::check(options_.http); !readable) {
    why = fmt::format("{}{}: {}", kHttpScheme, options_.http, readable.error().what);
    return readable;
  }
  auto http = http::HttpServer::start(options_.http, [this](std::string_view path) { return answer(path); });
  if (!http) return explain(std::string(kHttpScheme) + options_.http, http.error(), why);
  http_ = std::move(*http);
  return {};
}

// What the credentials of the day say of bytes and namespaces is the store's to keep.
void NodeImpl::bound_tenants(const auth::Authority& authority) {
  std::vector<store::TenantQuota> quotas;
  for (const auto& [tenant, quota] : authority.tenants())
    quotas.push_back({.tenant = tenant, .quota = {quota.pool_bytes, quota.flash_bytes, quota.namespaces}});
  store_->set_quotas(quotas);
}

void NodeImpl::make_context() {
  if (options_.shape_read_bytes_per_s > 0)
    shaper_ = std::make_unique<net::Shaper>(loop_, options_.shape_read_bytes_per_s);
  if (options_.cores > 1) {
    if (auto movers = net::Movers::start(loop_, options_.cores - 1)) movers_ = std::move(*movers);
    if (movers_ == nullptr) log_.warn("no thread beside the loop's could be started: it moves all bodies itself");
  }
  leases_ = std::make_unique<Leases>(loop_, *store_, counters_, options_.limits);
  context_.reset(new NodeContext{.loop = loop_,
                                 .log = log_,
                                 .store = *store_,
                                 .limits = options_.limits,
                                 .counters = counters_,
                                 .gate = gate_,
                                 .net = net_,
                                 .shaper = shaper_.get(),
                                 .turns = &turns_,
                                 .message_memory = message_memory_,
                                 .movers = movers_.get(),
                                 .leases = *leases_,
                                 .slices = slices_,
                                 .messages = messages_,
                                 .checks = checks_,
                                 .pinned = pinned_,
                                 .lent = lent_,
                                 .kept = kept_,
                                 .kept_keys = kept_keys_,
                                 .leavers = *leavers_,
                                 .unfinished = unfinished_,
                                 .op_keys = op_keys_,
                                 .rings = rings_,
                                 .arenas = arenas_,
                                 .windows = windows_,
                                 .copies = copies_,
                                 .verified_at_once = verified_at_once_,
                                 .shared_fd = store_->shared_fd(),
                                 .refusals = 0,
                                 .on_refused = [this] { note_refusal(); },
                                 .draining = false,
                                 .stats_json = [this] { return stats_json(); }});
}

RespServer::Doors NodeImpl::resp_doors() {
  if (options_.resp_identify) {
    return {.by_token = [this](std::string_view token, std::string_view) { return options_.resp_identify(token); },
            .by_certificate = {}};
  }
  if (gate_.open()) return {};
  const auto access_of = [](auto admission) {
    return admission ? std::optional(resp_access(std::move(*admission))) : std::nullopt;
  };
  return {
      .by_token = [this, access_of](auto token, auto peer) { return access_of(gate_.enter(as_bytes(token), peer)); },
      .by_certificate =
          [this, access_of](const io::PeerCertificate& certificate) { return access_of(gate_.enter(certificate)); }};
}

Status NodeImpl::listen(std::string& why) {
  const auto gone = [this](const std::string& peer, const Error& error) {
    counters_.resp_connections.set(resp_->sessions());
    ended(peer, "a RESP client", error);
  };
  resp_ = std::make_unique<RespServer>(*context_, options_.resp_ack, resp_doors(), gone);
  if (Status started = listen_on(resp_listeners_, &NodeImpl::adopt_resp, why); !started) return started;
  return listen_on(listeners_, &NodeImpl::adopt, why);
}

Status NodeImpl::listen_on(const std::vector<std::unique_ptr<net::Listener>>& listeners, Adopt take, std::string& why) {
  for (const auto& listener : listeners) {
    const Status started = listener->start(
        [this, tls = listener->address().tls, take](io::UniqueFd socket) { on_accept(std::move(socket), tls, take); });
    if (!started) return explain(listener->address().text(), started.error(), why);
  }
  return {};
}

std::vector<std::string> NodeImpl::resp_addresses() const {
  std::vector<std::string> addresses;
  for (const auto& listener : resp_listeners_) addresses.push_back(listener->address().text());
  return addresses;
}

Figures NodeImpl::figures() const {
  const std::chrono::duration<double> uptime = loop_.now() - started_;
  const store::Store* const served = served_.load();
  return {
      .node = counters_,
      .net = net_,
      .tenants = gate_.tenants(),
      .store = served == nullptr ? nullptr : &served->stats(),
      .spaces = served == nullptr ? std::vector<store::TenantFigures>() : served->tenant_figures(Tenants::kShownMax),
      .devices = served == nullptr ? std::vector<store::DeviceFigures>() : served->device_figures(),
      .ready = serves_all(),
      .uptime_s = uptime.count()};
}

// What of the store is read; on the HTTP thread.
std::string NodeImpl::recovery_text() const {
  const store::Store* const served = served_.load();
  if (served == nullptr) return "recovering\n";
  const std::uint64_t percent = served->stats().recovery_percent.value();
  return serves_all() ? fmt::format("ready from memory alone, recovery stands at {} %\n", percent)
                      : fmt::format("recovering, {} %\n", percent);
}

// Nothing waits for a flash tier that went off while it was read. Any thread.
bool NodeImpl::serves_all() const {
  const store::Store* const served = served_.load();
  const State state = state_.load();
  return state == State::kReady ||
         (state == State::kRecovering && served != nullptr && served->stats().tier_off.value() != 0);
}

// On the HTTP thread.
http::Response NodeImpl::answer(std::string_view path) const {
  if (path == "/metrics")
    return {.status = 200, .content_type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics_text(figures())};
  if (path != "/healthz") return {.status = 404, .body = "there are /metrics and /healthz here\n"};
  switch (state_.load()) {
    case State::kRecovering: return {.status = serves_all() ? 200 : 503, .body = recovery_text()};
    case State::kDraining: return {.status = 503, .body = "draining\n"};
    case State::kReady: break;
  }
  return {.status = 200, .body = "ready\n"};
}

Result<std::unique_ptr<io::Stream>> NodeImpl::stream_of(io::UniqueFd socket, bool tls) const {
  auto stream = net::make_socket_stream(std::move(socket));
  if (!tls) return stream;
  return options_.tls->wrap(std::move(stream), {}, options_.limits.handshake_limit);
}

void NodeImpl::on_accept(io::UniqueFd socket, bool tls, Adopt take) {
  auto stream = stream_of(std::move(socket), tls);
  refused(stream ? (this->*take)(std::move(*stream)) : Status(fail(stream.error())));
}

void NodeImpl::refused(const Status& adopted) {
  if (adopted) return;
  counters_.connections_refused.add();
  crowded_.warn(log_, loop_.now(), "a connection was refused: there are too many");
}

bool NodeImpl::close_silent_resp() {
  if (connections() < options_.limits.connections_max || !resp_->close_silent()) return false;
  counters_.connections_silent.add();
  counters_.resp_connections.set(resp_->sessions());
  return true;
}

// Whether one more connection may come. Those that say nothing keep nobody out: the one that has been silent for
// longest goes, first of those that came to the same door.
bool NodeImpl::make_room(bool for_resp) {
  if (for_resp && close_silent_resp()) return true;
  while (!newcomers_.empty()) {
    const auto oldest = sessions_.find(newcomers_.front());
    const bool silent = oldest != sessions_.end() && !oldest->second->greeted();
    if (silent && connections() < options_.limits.connections_max) break;
    newcomers_.pop_front();
    if (!silent) continue;
    counters_.connections_silent.add();
    sessions_.erase(oldest);
  }
  close_silent_resp();
  return connections() < options_.limits.connections_max;
}

Status NodeImpl::adopt(std::unique_ptr<io::Stream> stream) {
  if (context_->draining) return fail(kShuttingDown);
  if (!make_room()) return fail(Code::kBusy, "too many connections");
  const std::uint64_t number = next_session_++;
  auto session = std::make_unique<Session>(*context_, number, std::move(stream),
                                           [this](Session& s, const Error& why) { on_closed(s, why); });
  if (Status started = session->start(); !started) return started;
  sessions_.emplace(number, std::move(session));
  newcomers_.push_back(number);
  counters_.connections_accepted.add();
  counters_.connections.set(sessions_.size());
  return {};
}

Status NodeImpl::adopt_resp(std::unique_ptr<io::Stream> stream) {
  if (context_->draining) return fail(kShuttingDown);
  if (!make_room(true)) return fail(Code::kBusy, "too many connections");
  if (Status adopted = resp_->adopt(std::move(stream)); !adopted) return adopted;
  counters_.connections_accepted.add();
  counters_.resp_connections.set(resp_->sessions());
  return {};
}

// Of its session nothing is left.
void NodeImpl::ended(const std::string& peer, const std::string& name, const Error& why) {
  const bool bad = why.code == Code::kInvalid || why.code == Code::kStale || why.code == Code::kCorrupt ||
                   why.code == Code::kTimeout || why.code == Code::kNoSpace;
  if (bad) bad_peers_.warn(log_, loop_.now(), peer, name + ": " + why.what);
  if (context_->draining) check_drain();
}

void NodeImpl::on_closed(Session& session, const Error& why) {
  const auto gone = sessions_.extract(session.number());  // until the end: it owns `why`
  counters_.connections.set(sessions_.size());
  ended(session.peer_host(), fmt::format("'{}'", session.peer_name()), why);
}

void NodeImpl::note_refusal() {
  refused_lately_ = true;
  if (!contention_timer_.armed()) contention_timer_.arm_in(kContentionPoll);
}

// Somebody has found no room for a GET. Who keeps room without reading loses it, the longest first, until nobody waits.
// Where much is left, beside what is kept for tenants, the one that waits has taken its own share.
void NodeImpl::on_contention() {
  const auto waits = [](const auto& entry) { return entry.second->refused() > 0; };
  if (!std::exchange(refused_lately_, false) && std::ranges::none_of(sessions_, waits)) return;
  contention_timer_.arm_in(kContentionPoll);
  room_timer_.arm(loop_.now());  // what a client has taken meanwhile may be enough (Pins)
  if (pinned_.used() + gate_.tenants().pinned_kept() < pinned_.bytes_max() / 2) return;
  static const Error kStuck{Code::kTimeout, 0, "it does not read while others wait for their part of the pool"};
  Time since = loop_.now() - options_.limits.contended_stall_limit;
  Session* const stuck = most_stuck(sessions_, since);
  RespSession* const redis = resp_->most_stuck(since);
  if (redis != nullptr || stuck != nullptr) net_.stalled.add();
  if (redis != nullptr) return redis->close(kStuck);
  if (stuck != nullptr) stuck->close(kStuck);
}

// Whose GET was refused first is told first.
void NodeImpl::tell_room() {
  std::vector<Session*> waiting;
  for (const auto& [number, session] : sessions_) {
    if (session->refused() > 0) waiting.push_back(session.get());
  }
  std::ranges::sort(waiting, {}, &Session::refused);
  for (Session* session : waiting) session->on_room();
}

void NodeImpl::set_authority(std::shared_ptr<const auth::Authority> authority) {
  KVD_CHECK(authority != nullptr && !gate_.open());
  bound_tenants(*authority);
  const bool shares = std::ranges::any_of(listeners_, &net::Listener::is_unix) && gives_memory();
  if (shares && context_->shared_fd < 0 && authority->grants(auth::Right::kPool))
    log_.warn("node: credentials with the right 'pool' are lent the pool from the depot's next start on");
  gate_.replace(std::move(authority));
  for (const auto& [number, session] : sessions_) session->renew_identity();
  // Redis clients come back by themselves, and say again who they are.
  resp_->close_all(Error{Code::kUnavailable, 0, "the credentials have changed"});
}

void NodeImpl::judge_certificates() {
  for (const auto& [number, session] : sessions_) session->renew_identity();
  resp_->close_secure(Error{Code::kUnavailable, 0, "the certificates have changed"});
}

void NodeImpl::drain(Duration limit, io::Callback on_done) {
  KVD_CHECK(!context_->draining);
  state_ = State::kDraining;
  context_->draining = true;
  on_drained_ = std::move(on_done);
  listeners_.clear();
  resp_listeners_.clear();
  drain_until_ = after(loop_.now(), limit);
  drain_timer_.arm_in(limit / 2);
  drain_poll_.arm(loop_.now());
}

// Ends connections that have nothing under way; with the last one the store's turn comes.
void NodeImpl::check_drain() {
  constexpr Duration kPoll = std::chrono::milliseconds(5);
  if (store_draining_) return;
  for (const auto& [number, session] : sessions_) {
    if (session->idle()) session->close(kShuttingDown);
  }
  resp_->close_idle(kShuttingDown);
  if (!sessions_.empty() || resp_->sessions() > 0) return drain_poll_.arm_in(kPoll);
  drain_timer_.disarm();
  drain_poll_.disarm();
  store_draining_ = true;
  store_->drain(drain_until_, [this] {
    if (on_drained_) std::exchange(on_drained_, nullptr)();
  });
}

// The requests have had their half of the time.
void NodeImpl::on_drain_timer() {
  for (const auto& [number, session] : sessions_) session->close(kShuttingDown);
  resp_->close_all(kShuttingDown);
}

}  // namespace kvd::node
