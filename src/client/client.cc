// Client on a thread of its own: callers' side of everything, in front of a Core that runs on the I/O thread's loop.
#include "kvdepot/client.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>

#include "base/cores.h"
#include "base/error_text.h"
#include "client/attachment.h"
#include "client/core.h"
#include "client/region_table.h"
#include "client/request.h"
#include "client/token_file.h"
#include "io/fd.h"
#include "net/tls_dialer.h"

namespace kvd::client {
namespace {

constexpr Duration kCancelAgain = std::chrono::milliseconds(100);
constexpr std::size_t kPolledMax = 4096;  // copies made by one call
// A get of no more comes within the time that it takes to wake a thread or two.
constexpr std::size_t kSoonThereBytes = std::size_t{256} << 10;
constexpr char kForked[] = "a forked child must open a client of its own";

Time time_in(std::chrono::milliseconds timeout) {
  const bool forever = timeout > std::chrono::hours(24 * 365);  // beyond it nanoseconds would overflow
  return forever ? kNever : after(monotonic_now(), timeout);
}

Status check_options(const ClientOptions& options) {
  if (options.ops_max == 0 || options.ops_max > kOpsMaxMax) return fail(Code::kInvalid, "ops_max must be 1 to 32768");
  if (options.breaker_failures == 0) return fail(Code::kInvalid, "breaker_failures must be at least 1");
  if (options.spin.count() < 0 || options.spin > std::chrono::milliseconds(10))
    return fail(Code::kInvalid, "spin must be 0 to 10 ms");
  if (options.breaker_probe.count() <= 0) return fail(Code::kInvalid, "breaker_probe must be longer than nothing");
  return {};
}

std::string describe(const Error& error) { return error.code == Code::kOk ? std::string() : error_text(error); }

std::function<Result<std::string>()> token_of(const ClientOptions& options) {
  if (options.token_file.empty()) return {};
  return [path = options.token_file] { return read_token_file(path); };
}

tls::ClientFiles tls_files(const ClientOptions& options) {
  return {.ca = options.tls_ca, .certificate = options.tls_cert, .key = options.tls_key};
}

// Encryption is asked for by the address alone: options for it and another address would be a client in the clear.
Status check_tls(const net::Address& address, const ClientOptions& options) {
  const bool said = !options.tls_ca.empty() || !options.tls_cert.empty() || !options.tls_key.empty();
  if (!address.tls) {
    if (said) return fail(Code::kInvalid, "tls_ca, tls_cert and tls_key are for addresses that begin with tls://");
    return {};
  }
  if (options.tls_ca.empty()) {
    return fail(Code::kInvalid, "tls_ca is missing: a tls:// address needs the authority of the depot's certificate");
  }
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return fail(Code::kInvalid, "tls_cert and tls_key go together");
  }
  if (!tls::Context::make_client(tls_files(options))) {
    return fail(Code::kInvalid,
                "tls_ca, tls_cert or tls_key cannot be read, is no such file in PEM form, or others can read the key: "
                "chmod 600");
  }
  return {};
}

net::MakeDialer dialer_of(const net::Address& address, const ClientOptions& options) {
  if (!address.tls) return {};
  const std::string server = options.tls_server_name.empty() ? address.host : options.tls_server_name;
  return [files = tls_files(options), server](io::Loop& loop) {
    return std::make_unique<net::TlsDialer>(std::make_unique<net::SocketDialer>(loop), files, server);
  };
}

// All that a client consists of. In a forked child it is left as it is: its thread is not there, and its descriptors
// are shared with the parent, which an orderly end would disturb.
struct Parts {
  Parts(std::unique_ptr<io::Loop> on, io::UniqueFd event, const net::Address& address, const ClientOptions& options)
      : loop(std::move(on)),
        event_fd(std::move(event)),
        ops(options.ops_max, event_fd.get(), has_other_cores(), options.spin),
        core(*loop, ops, namespaces, state,
             {.address = address,
              .name = options.name,
              .breaker_failures = options.breaker_failures,
              .breaker_probe = options.breaker_probe,
              .verify = options.verify,
              .seed = static_cast<std::uint64_t>(loop->now().time_since_epoch().count()),
              .make_dialer = dialer_of(address, options),
              .shared_memory = options.shared_memory && !address.tls,
              .token = token_of(options)}) {}

  std::unique_ptr<io::Loop> loop;
  io::UniqueFd event_fd;
  ClientState state;
  RegionTable regions;
  NamespaceTable namespaces;
  OpTable ops;
  Core core;
  std::thread thread;
};

class ThreadedClient final : public Client {
 public:
  ThreadedClient(std::unique_ptr<Parts> parts, std::unique_ptr<Attachment> attachment, Duration spin)
      : attachment_(std::move(attachment)), parts_(std::move(parts)), spin_(spin), pid_(::getpid()) {}
  ~ThreadedClient() override;

  Status start();
  Status wait_connected(Duration timeout) { return parts_->state.wait_connected(timeout); }

  Result<RegionId> register_region(void* base, std::size_t bytes, RegionKind kind) override {
    if (forked()) return fail(Code::kInvalid, kForked);
    return parts_->regions.add(base, bytes, kind);
  }
  Status unregister_region(RegionId region) override {
    if (forked()) return fail(Code::kInvalid, kForked);
    return parts_->regions.remove(region);
  }
  Result<NamespaceId> open_namespace(const Namespace& ns) override;
  Status close_namespace(NamespaceId ns) override;
  Result<OpId> match_prefix(const MatchRequest& request) override;
  Result<OpId> multiget(const GetRequest& request) override;
  Result<OpId> borrow(const BorrowRequest& request) override;
  Result<std::unique_ptr<View>> take_view(OpId op) override;
  Result<OpId> multiput(const PutRequest& request) override;
  Status put_layer(OpId op, std::uint16_t layer) override;
  Result<OpId> remove(NamespaceId ns, std::span<const std::uint16_t> shards, std::span<const std::uint16_t> groups,
                      const KeyList& keys, Deadline deadline) override;
  Status unpin(LeaseId lease) override;
  Status open_breaker() override;
  Status reconnect(std::chrono::milliseconds timeout) override;
  Status cancel(OpId op) override;
  [[nodiscard]] int event_fd() const noexcept override;
  std::size_t poll(std::span<Completion> out) override { return forked() ? 0 : parts_->ops.poll(out); }
  Result<Completion> wait(OpId op, std::uint16_t layer, std::chrono::milliseconds timeout) override;
  std::vector<OwnedCompletion> poll_owned(std::size_t max) override;
  Result<OwnedCompletion> wait_owned(OpId op, std::uint16_t layer, std::chrono::milliseconds timeout) override;
  void release(OpId op) override;
  [[nodiscard]] ClientStats stats() const override;
  Result<std::string> depot_stats(std::chrono::milliseconds timeout) override;

 private:
  [[nodiscard]] bool forked() const noexcept { return ::getpid() != pid_; }
  [[nodiscard]] Status accepts() const;
  Result<OpId> submit(Result<OpRequest> request);
  void help(OpId op, std::uint16_t layer, Time until);

  std::unique_ptr<Attachment> attachment_;  // goes after the client itself
  std::unique_ptr<Parts> parts_;
  const Duration spin_;
  pid_t pid_;
};

Status ThreadedClient::start() {
  // Signals are the application's business: its handlers must not run on the I/O thread.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Status started;
  try {
    parts_->thread = std::thread([parts = parts_.get()] {
      parts->core.start();
      parts->loop->run();
    });
    ::pthread_setname_np(parts_->thread.native_handle(), "kvd-client");
  } catch (const std::system_error& error) {
    started = fail(Code::kNoSpace, "start the client's I/O thread", error.code().value());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

ThreadedClient::~ThreadedClient() {
  if (forked()) {
    static_cast<void>(parts_.release());
    static_cast<void>(attachment_.release());
    return;
  }
  if (!parts_->thread.joinable()) {
    parts_->core.stop();
    return;
  }
  parts_->loop->post([parts = parts_.get()] {
    parts->core.stop();
    parts->loop->stop();
  });
  parts_->thread.join();
}

Result<NamespaceId> ThreadedClient::open_namespace(const Namespace& ns) {
  if (forked()) return fail(Code::kInvalid, kForked);
  auto id = parts_->namespaces.add(ns);
  if (id) parts_->loop->post([parts = parts_.get()] { parts->core.open_namespaces(); });
  return id;
}

Status ThreadedClient::close_namespace(NamespaceId ns) {
  if (forked()) return fail(Code::kInvalid, kForked);
  const auto last = parts_->namespaces.close(ns);
  if (!last) return fail(last.error());
  if (*last) parts_->loop->post([parts = parts_.get(), ns] { parts->core.close_namespace(ns); });
  return {};
}

Status ThreadedClient::accepts() const {
  if (!parts_->state.connected()) return fail(Code::kUnavailable, "the depot is not connected");
  if (parts_->state.breaker_open()) return fail(Code::kUnavailable, "the depot does not answer: the breaker is open");
  return {};
}

// A lookup, or a small get beside which there is nothing else: of several the I/O thread does one's work while the
// caller sees to another's.
bool is_soon_there(const OpRequest& request, const OpTable& others) {
  if (request.kind != OpKind::kGet) return request.kind == OpKind::kMatch;
  if (!others.is_empty()) return false;
  return request.keys.count() * request.layer_count * std::size_t{request.layout.slab_bytes()} <= kSoonThereBytes;
}

Result<OpId> ThreadedClient::submit(Result<OpRequest> request) {
  if (!request) return fail(request.error());
  request->submitted = parts_->loop->now();
  request->soon = spin_ > Duration::zero() && is_soon_there(*request, parts_->ops);
  const auto op = parts_->ops.add(std::move(*request));
  if (!op) {
    parts_->state.busy.add();
    return fail(op.error());
  }
  parts_->state.requests.add();
  const OpId id = (*op)->id.load(std::memory_order_relaxed);
  if ((*op)->request.soon) {
    parts_->core.submit_here(**op, Op::kStart);
  } else {
    parts_->core.submit(**op, Op::kStart);
  }
  return id;
}

// Who waits for what is soon there does the I/O thread's work for a moment: no thread has to be woken for it, and what
// comes through rings comes without any thread's waking.
void ThreadedClient::help(OpId op, std::uint16_t layer, Time until) {
  const std::optional<OpKind> kind = parts_->ops.soon_kind(op);
  if (!kind) return;
  const auto done = [&] {
    const auto found = parts_->ops.try_get(op, layer);
    return found.has_value() || found.error().code != Code::kBusy || monotonic_now() >= until;
  };
  const bool in_memory = *kind == OpKind::kMatch;  // by rings, where there are any; bodies never are
  if (!done()) static_cast<void>(parts_->loop->help(spin_, nullptr, done, in_memory));
}

Result<OpId> ThreadedClient::match_prefix(const MatchRequest& request) {
  if (forked()) return fail(Code::kInvalid, kForked);
  if (const Status ok = accepts(); !ok) return fail(ok.error());
  return submit(make_match(parts_->namespaces, request));
}

Result<OpId> ThreadedClient::multiget(const GetRequest& request) {
  if (forked()) return fail(Code::kInvalid, kForked);
  if (const Status ok = accepts(); !ok) return fail(ok.error());
  return submit(make_get(parts_->namespaces, parts_->regions, request));
}

Result<OpId> ThreadedClient::borrow(const BorrowRequest& request) {
  if (forked()) return fail(Code::kInvalid, kForked);
  if (const Status ok = accepts(); !ok) return fail(ok.error());
  return submit(make_borrow(parts_->namespaces, request));
}

Result<std::unique_ptr<View>> ThreadedClient::take_view(OpId op) {
  if (forked()) return fail(Code::kInvalid, kForked);
  return parts_->ops.take_view(op);
}

Result<OpId> ThreadedClient::multiput(const PutRequest& request) {
  if (forked()) return fail(Code::kInvalid, kForked);
  if (const Status ok = accepts(); !ok) return fail(ok.error());
  return submit(make_put(parts_->namespaces, parts_->regions, request));
}

Result<OpId> ThreadedClient::remove(NamespaceId ns, std::span<const std::uint16_t> shards,
                                    std::span<const std::uint16_t> groups, const KeyList& keys, Deadline deadline) {
  if (forked()) return fail(Code::kInvalid, kForked);
  if (const Status ok = accepts(); !ok) return fail(ok.error());
  return submit(make_remove(parts_->namespaces, ns, shards, groups, keys, deadline));
}

Status ThreadedClient::put_layer(OpId id, std::uint16_t layer) {
  if (forked()) return fail(Code::kInvalid, kForked);
  if (Status released = parts_->ops.release_layer(id, layer); !released) return released;
  if (Op* const op = parts_->ops.find(id)) parts_->core.submit(*op, Op::kLayers);
  return {};
}

Status ThreadedClient::unpin(LeaseId lease) {
  if (forked()) return fail(Code::kInvalid, kForked);
  if (lease == 0) return fail(Code::kInvalid, "no such lease");
  if (const Status ok = accepts(); !ok) return fail(ok.error());
  parts_->loop->post([parts = parts_.get(), lease] { parts->core.unpin(lease); });
  return {};
}

Status ThreadedClient::open_breaker() {
  if (forked()) return fail(Code::kInvalid, kForked);
  if (!accepts()) return {};
  parts_->state.set_breaker_open(true);  // the very next submission must see it
  parts_->loop->post([parts = parts_.get()] { parts->core.suspect(); });
  return {};
}

Status ThreadedClient::reconnect(std::chrono::milliseconds timeout) {
  if (forked()) return fail(Code::kInvalid, kForked);
  if (parts_->state.connected()) return {};
  parts_->loop->post([parts = parts_.get()] { parts->core.hurry(); });
  return parts_->state.wait_connected(timeout);
}

Status ThreadedClient::cancel(OpId id) {
  if (forked()) return fail(Code::kInvalid, kForked);
  Op* const op = parts_->ops.find(id);
  if (op == nullptr) return fail(Code::kNotFound, "no such operation");
  if (op->ended()) return {};
  // The I/O thread takes commands between two system calls, so this is as short as one of them. Asked again after a
  // while: a late cancel of the slot's former operation, by another thread, may have overwritten this one.
  for (;;) {
    op->cancel_id.store(id, std::memory_order_release);
    parts_->core.submit(*op, Op::kCancel);
    const auto ended = parts_->ops.wait(id, kWholeOp, after(monotonic_now(), kCancelAgain));
    if (ended) return {};
    if (ended.error().code != Code::kTimeout) return fail(ended.error());
  }
}

int ThreadedClient::event_fd() const noexcept {
  if (!forked()) parts_->ops.signal();
  return parts_->event_fd.get();
}

Result<Completion> ThreadedClient::wait(OpId op, std::uint16_t layer, std::chrono::milliseconds timeout) {
  if (forked()) return fail(Code::kInvalid, kForked);
  const Time until = time_in(timeout);
  help(op, layer, until);
  return parts_->ops.wait(op, layer, until, nullptr, true);
}

Result<OwnedCompletion> ThreadedClient::wait_owned(OpId op, std::uint16_t layer, std::chrono::milliseconds timeout) {
  if (forked()) return fail(Code::kInvalid, kForked);
  OwnedCompletion copy;
  const Time until = time_in(timeout);
  help(op, layer, until);
  if (const auto done = parts_->ops.wait(op, layer, until, &copy, true); !done) return fail(done.error());
  return copy;
}

std::vector<OwnedCompletion> ThreadedClient::poll_owned(std::size_t max) {
  std::vector<OwnedCompletion> copies;
  if (forked()) return copies;
  std::vector<Completion> done(std::min(max, kPolledMax));
  parts_->ops.poll(done, &copies);
  return copies;
}

void ThreadedClient::release(OpId op) {
  if (forked()) return;
  Status released = parts_->ops.release(op);
  if (released || released.error().code != Code::kBusy) return;
  static_cast<void>(cancel(op));
  static_cast<void>(parts_->ops.release(op));
}

ClientStats ThreadedClient::stats() const {
  ClientStats stats;
  if (forked()) return stats;
  const ClientState& state = parts_->state;
  stats.requests = state.requests.value();
  stats.completed = state.completed.value();
  stats.failed = state.failed.value();
  stats.timeouts = state.timeouts.value();
  stats.cancelled = state.cancelled.value();
  stats.busy = state.busy.value();
  stats.corrupt_slabs = state.get.corrupt_slabs.value() + parts_->core.damaged_in_views();
  stats.bytes_loaded = state.get.bytes_loaded.value();
  stats.bytes_shared = state.get.bytes_shared.value();
  stats.bytes_borrowed = state.get.bytes_borrowed.value();
  stats.views_copied = state.get.loans_ended.value();
  stats.bytes_stored = state.bytes_stored.value();
  stats.messages_sent = state.net.messages_out.value();
  stats.messages_received = state.net.messages_in.value();
  stats.send_calls = state.net.send_calls.value();
  stats.recv_calls = state.net.recv_calls.value();
  stats.reconnects = state.reconnects.value();
  stats.breaker_opened = state.breaker_opened.value();
  stats.connected = state.connected();
  stats.breaker_open = state.breaker_open();
  stats.last_error = describe(state.error());
  stats.last_refusal = state.refusal();
  return stats;
}

Result<std::string> ThreadedClient::depot_stats(std::chrono::milliseconds timeout) {
  if (forked()) return fail(Code::kInvalid, kForked);
  if (const Status ok = accepts(); !ok) return fail(ok.error());
  OpRequest request;
  request.kind = OpKind::kStats;
  request.deadline = {.total = std::max(timeout, std::chrono::milliseconds(1)), .progress = {}};
  const auto op = submit(std::move(request));
  if (!op) return fail(op.error());
  const auto whole = parts_->ops.wait(*op, kWholeOp, kNever);  // bounded by the op's own deadline
  Result<std::string> text = fail(whole ? whole->code : whole.error().code, "ask the depot for its statistics");
  if (whole && whole->code == Code::kOk) text = parts_->ops.take_text(*op);
  release(*op);
  return text;
}

}  // namespace

Result<std::unique_ptr<Client>> open_attached(const std::string& depot, const ClientOptions& options,
                                              std::unique_ptr<Attachment> attachment) {
  if (Status checked = check_options(options); !checked) return fail(checked.error());
  if (depot.starts_with("file://")) {
    return fail(Code::kInvalid, "file:// is an embedded depot: open it with open_any() of kvdepot/embed.h");
  }
  const auto address = net::parse_address(depot);
  if (!address) return fail(address.error());
  if (const Status checked = check_tls(*address, options); !checked) return fail(checked.error());
  if (const auto token = token_of(options); token) {
    if (const auto usable = token(); !usable)
      return fail(Code::kInvalid, usable.error().what, usable.error().sys_errno);
  }
  auto loop = io::make_real_loop();
  if (!loop) return fail(loop.error());
  io::UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.ok()) return fail(Code::kIo, "create an eventfd", errno);
  auto parts = std::make_unique<Parts>(std::move(*loop), std::move(event), *address, options);
  auto opened = std::make_unique<ThreadedClient>(std::move(parts), std::move(attachment), options.spin);
  if (Status started = opened->start(); !started) return fail(started.error());
  if (options.require_connection) {
    if (Status connected = opened->wait_connected(options.connect_timeout); !connected) {
      return fail(connected.error());
    }
  }
  return opened;
}

}  // namespace kvd::client

namespace kvd {

Result<std::unique_ptr<Client>> Client::open(const std::string& depot, const ClientOptions& options) {
  return client::open_attached(depot, options, nullptr);
}

}  // namespace kvd
