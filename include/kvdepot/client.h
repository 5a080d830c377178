// The asynchronous client: one API for a depot on the network, on a unix socket, or inside this process.
//
// Threads: every function may be called from any thread. A client owns one I/O thread, which moves all bytes; callers
// only submit and collect, and copy a part of what they wait for where it lies in the memory of a depot on this host.
// No function blocks except `open`, `wait`, `cancel`, `release` of a running operation, `depot_stats` and the
// destructor, and each of those is bounded: by its timeout, by one system call that moves bytes or as much that a
// waiter copies, or, where the client owns an embedded depot, as kvdepot/embed.h says.
//
// Faults: a depot that is away, slow or full never stalls a caller: operations end by their deadline with
// Code::kTimeout / kUnavailable / kBusy, a breaker makes the following ones end at once, and the I/O thread reconnects
// by itself. A miss is always a legal answer.
//
// Bounds: at most `ops_max` operations that are not released (one more: Code::kBusy); memory per operation is bounded
// by its number of keys and layers; payload is never buffered inside the client: it moves between the socket and the
// regions.
//
// Fork: a forked child must not use an inherited client; every call there returns Code::kInvalid, and its copies of the
// client's sockets are closed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvdepot/result.h"
#include "kvdepot/types.h"
#include "kvdepot/view.h"

namespace kvd {

using OpId = std::uint64_t;         // 0 is never an operation
using LeaseId = std::uint64_t;      // 0 = no lease
using NamespaceId = std::uint32_t;  // valid for the client that opened it until it closes it, also across reconnects

inline constexpr std::uint16_t kWholeOp = 0xFFFF;  // Completion::layer of an operation's last completion

struct ClientOptions {
  std::chrono::milliseconds connect_timeout{1000};  // for open() with `require_connection`
  bool require_connection = false;                  // false: open succeeds at once and connects in the background
  std::uint32_t ops_max = 256;                      // operations not released yet, 1..32768; more is Code::kBusy
  std::uint32_t breaker_failures = 1;               // consecutive failures that open the breaker: docs/client.md
  std::chrono::milliseconds breaker_probe{1000};    // an open breaker probes the depot this often
  bool verify = true;                               // false only in tests that prove that verification matters
  bool shared_memory = true;  // same host and user: copy from the depot's memory when it offers that
  // How long a thread that waits for a lookup, or for a get of at most 256 KiB beside which there is no operation,
  // looks for the answer by itself, in memory or at the socket, before it sleeps, at most 10 ms; again after each thing
  // that comes. Who waits for another get looks that long for something to copy, where gets come out of a depot's
  // memory. 0 = not at all. Of no effect where the process has one core.
  std::chrono::microseconds spin{50};
  std::string name = "kvdepot-client";  // shown in the depot's log
  // A file with the token that the depot asks for, which only its owner may read; read again for each connection, so
  // that a token can be replaced. Empty = none. Without TLS whoever sees the connection sees the token.
  std::string token_file{};
  // For tls:// addresses, PEM files, read again for each connection: who has signed the depot's certificate (needed),
  // and this client's own certificate and key (mode 0600), where the depot wants one. The depot's certificate must be
  // for the host of the address, or for this name instead.
  std::string tls_ca{};
  std::string tls_cert{};
  std::string tls_key{};
  std::string tls_server_name{};
};

// Deadlines of one operation. Zero = none. Time starts at submission. Progress is a byte in either direction on the
// connection that carries the operation, or the depot's answer that it is there, which a get or put without bytes asks
// for and which counts for a second (docs/decisions/0005-word-of-the-depot.md). Time does not count while a
// layer-by-layer multiput waits for its caller.
struct Deadline {
  std::chrono::milliseconds total{0};       // the operation ends by then
  std::chrono::milliseconds progress{100};  // give up after this long without any
};

struct MatchRequest {
  NamespaceId ns = 0;
  std::span<const std::uint16_t> shards{};  // 1..kShardsMax
  std::span<const std::uint16_t> groups{};  // 1..kGroupsMax
  KeyList keys{};                           // block i of group g at index g * blocks + i; same count for every group
  std::uint32_t lease_ms = 0;               // > 0: pin the usable prefix in the pool that long (bounded share of it)
  bool promote = true;                      // start bringing flash records of the prefix into the pool
  Deadline deadline{};
};

struct GetRequest {
  NamespaceId ns = 0;
  std::uint16_t shard = 0;
  std::uint16_t group = 0;
  std::uint16_t layer_first = 0;
  std::uint16_t layer_count = 0;  // 0 = all
  KeyList keys{};
  Placement dest{};
  bool stop_at_first_failure = true;  // after a first failed key the rest of a prefix is useless and is cancelled
  Deadline deadline{};
};

inline constexpr std::chrono::milliseconds kHoldMax{600'000};

struct BorrowRequest {
  NamespaceId ns = 0;
  std::uint16_t shard = 0;
  std::uint16_t group = 0;
  std::uint16_t layer_first = 0;
  std::uint16_t layer_count = 0;  // 0 = all
  KeyList keys{};
  bool verify = true;  // read each slab once, on the I/O thread or one that waits, and compare its checksum; false: who
                       // uses a slab that stays where it lies asks View::verify()
  std::chrono::milliseconds hold{10'000};  // from submission, at most kHoldMax: for so long the depot's memory may stay
                                           // lent; the view lasts for as long as it is wanted
  bool stop_at_first_failure = true;
  Deadline deadline{};  // until the view is there
};

struct PutRequest {
  NamespaceId ns = 0;
  std::uint16_t shard = 0;
  std::uint16_t group = 0;
  KeyList keys{};
  Placement src{};  // all layers of the schema
  AckLevel ack = AckLevel::kPooled;
  bool whole = true;  // false: layers are released one by one with put_layer()
  Deadline deadline{};
};

// One event of one operation. For a multiget: one per layer in the order asked for, then one with layer kWholeOp.
// Every operation ends with exactly one kWholeOp completion.
struct Completion {
  OpId op = 0;
  std::uint16_t layer = kWholeOp;
  Code code = Code::kOk;                 // kOk also when single keys failed: see `failed`
  std::uint32_t keys = 0;                // number of keys of the operation
  std::uint32_t failed_keys = 0;         // how many of them failed up to and including this layer
  const std::uint8_t* failed = nullptr;  // bitmap, bit i of byte i/8 = key i failed; valid until release(op)
  // match only:
  std::uint32_t prefix_blocks = 0;  // usable prefix on all shards and groups
  std::uint32_t flash_blocks = 0;   // of these, on flash
  LeaseId lease = 0;
  std::uint32_t removed = 0;  // remove only: records that were there
  // kWholeOp only: from submission to the end, whenever the completion is looked at.
  std::chrono::nanoseconds took{0};
  // put only: why the first key that failed was not kept, when the depot says so: kBusy or kNoSpace = no room for it,
  // kCorrupt = damaged on its way, kIo = the level of acknowledgement was not reached. kOk: none failed, or not said.
  Code failed_code = Code::kOk;
  // Why `code`, or `failed_code`, is not kOk: one line of at most 128 printable characters, in the depot's own words
  // where it refused; empty otherwise. Valid until release(op).
  const char* why = "";
};

// A completion with copies of its own: valid for as long as it lives, whoever releases the operation meanwhile.
struct OwnedCompletion {
  Completion done;                   // its `failed` and `why` are null and empty: see below
  std::vector<std::uint8_t> failed;  // as Completion::failed; (keys + 7) / 8 bytes
  std::string why;
};

struct ClientStats {
  std::uint64_t requests = 0, completed = 0, failed = 0, timeouts = 0, cancelled = 0, busy = 0;
  std::uint64_t corrupt_slabs = 0;  // slabs that failed verification at this client, or in a view of it
  std::uint64_t bytes_loaded = 0, bytes_stored = 0;
  std::uint64_t bytes_shared = 0;    // of bytes_loaded: copied from the depot's memory
  std::uint64_t bytes_borrowed = 0;  // of bytes_loaded: left there for a view
  std::uint64_t views_copied = 0;    // views, or parts, that turned into copies as their time was over
  std::uint64_t messages_sent = 0, messages_received = 0, send_calls = 0, recv_calls = 0;
  std::uint64_t reconnects = 0;  // times that a lost connection, whichever of the two, was there again
  std::uint64_t breaker_opened = 0;
  bool connected = false, breaker_open = false;
  std::string last_error;    // why the last connection or attempt ended; empty while connected
  std::string last_refusal;  // what the depot refused last, and why: "CODE: reason"; empty when nothing
};

class Client {
 public:
  // Opens a client for `depot`: "tcp://HOST:PORT", "tls://HOST:PORT" (the same, encrypted), "unix:///PATH", or, through
  // kvdepot/embed.h, "file:///DIR?pool=1GiB&flash=10GiB". Errors: kInvalid (bad address, no usable token_file or TLS
  // files), kUnavailable (only with require_connection).
  static Result<std::unique_ptr<Client>> open(const std::string& depot, const ClientOptions& options = {});
  virtual ~Client() = default;  // cancels what is in flight; afterwards no byte lands in any region

  // Registers [base, base + bytes). The memory must outlive the client or unregister(). kInvalid: empty or a kind
  // that this build cannot reach.
  virtual Result<RegionId> register_region(void* base, std::size_t bytes, RegionKind kind = RegionKind::kHost) = 0;
  virtual Status unregister_region(RegionId region) = 0;  // kBusy while operations use it

  // Declares a namespace; remembered and declared again after a reconnect. A depot that holds the same fingerprint
  // with another schema, or cannot hold its records, refuses: operations then end with its code and Completion::why.
  // Local errors: kInvalid.
  // An equal namespace that is open has the same id. kNoSpace: 1,024 are open.
  virtual Result<NamespaceId> open_namespace(const Namespace& ns) = 0;
  // Once for each open_namespace(): with the last one the depot may forget it, but for the records that it holds.
  // Operations under way end as they would; one that the depot has not been asked yet may end with kInvalid. kNotFound.
  virtual Status close_namespace(NamespaceId ns) = 0;

  // Submissions copy their arrays, never block, and return the operation's id, or kBusy / kInvalid / kUnavailable
  // (breaker open or not connected: nothing was sent and nothing is owed).
  virtual Result<OpId> match_prefix(const MatchRequest& request) = 0;
  virtual Result<OpId> multiget(const GetRequest& request) = 0;
  // As multiget, but what it finds stays where it is: when it has ended with kOk, take_view() gives it. A depot on this
  // host lends its memory for it where it can; otherwise, and beyond what it lends (docs/client.md), the slabs are
  // copied into memory of the view's own. kNoSpace: there is none for that.
  virtual Result<OpId> borrow(const BorrowRequest& request) = 0;
  // Once for each. kBusy: the borrow has not ended. kNotFound: it has no view, or it was taken. What is not taken is
  // given back by release(), which views that were taken do not mind.
  virtual Result<std::unique_ptr<View>> take_view(OpId op) = 0;
  virtual Result<OpId> multiput(const PutRequest& request) = 0;
  // Releases layer `layer` of a layer-by-layer multiput: its slabs are final and may be read from now on.
  virtual Status put_layer(OpId op, std::uint16_t layer) = 0;
  // Ends with kOk when the removal survives the death of the depot (as AckLevel::kWritten); with kIo when its flash
  // tier is off: what that holds may be back after a restart.
  virtual Result<OpId> remove(NamespaceId ns, std::span<const std::uint16_t> shards,
                              std::span<const std::uint16_t> groups, const KeyList& keys, Deadline deadline) = 0;
  virtual Status unpin(LeaseId lease) = 0;
  // Opens the breaker, as a failure of the depot does: for what another client of the same depot has found. From the
  // return on submissions end with kUnavailable, until a probe is answered.
  virtual Status open_breaker() = 0;
  // For a caller who knows from another client that the depot is there: connects now, not when the back-off's time
  // has come. Blocks until there is a connection (kOk, at once if there was one), there cannot be one (kInvalid,
  // kStale), or `timeout` has passed (kUnavailable).
  virtual Status reconnect(std::chrono::milliseconds timeout) = 0;

  // Ends `op` with kCancelled (or as it ended meanwhile). When it returns, no byte can land in its destination and
  // none is read from its source any more. Bounded: waits for at most one system call that moves bytes (1 MiB).
  virtual Status cancel(OpId op) = 0;

  // Collecting. event_fd() is readable while completions wait. poll() takes up to out.size() of them in order.
  [[nodiscard]] virtual int event_fd() const noexcept = 0;
  virtual std::size_t poll(std::span<Completion> out) = 0;
  // Waits until layer `layer` (or, with kWholeOp, the whole) of `op` is done, at most `timeout`. Returns its
  // completion, or kTimeout (the operation goes on), kNotFound (unknown or released op). Independent of poll().
  virtual Result<Completion> wait(OpId op, std::uint16_t layer, std::chrono::milliseconds timeout) = 0;
  // The same two for callers who cannot know whether another thread releases the operation in this moment: a bitmap is
  // copied before release() can take it. poll_owned() takes up to `max` completions, at most 4,096.
  virtual std::vector<OwnedCompletion> poll_owned(std::size_t max) = 0;
  virtual Result<OwnedCompletion> wait_owned(OpId op, std::uint16_t layer, std::chrono::milliseconds timeout) = 0;
  // Gives the operation's memory (bitmap) back; cancels it first if it still runs. Every op must be released.
  virtual void release(OpId op) = 0;

  [[nodiscard]] virtual ClientStats stats() const = 0;
  // The depot's own statistics as JSON text; blocks at most `timeout`.
  virtual Result<std::string> depot_stats(std::chrono::milliseconds timeout) = 0;
};

}  // namespace kvd
