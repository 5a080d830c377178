// Node: one depot: a store, the listeners in front of it, and the sessions of its clients.
//
// Everything runs on one loop, whose thread owns the node; metrics and health are answered by a thread of their own
// (src/http), which reads atomics only. The loop and the log outlive the node. In a process of its own (`kvdepot
// serve`) a node listens; clients may also be adopted as connected streams, whatever carries these.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "io/loop.h"
#include "io/stream.h"
#include "node/options.h"

namespace kvd::node {

class Node {
 public:
  // Takes the addresses, opens the store (recovery runs inside and blocks; /healthz says 503 meanwhile), then listens.
  // With NodeOptions::serve_recovering recovery is left to recover().
  // Errors say what to do: kBusy (an address or the directory is in use), kInvalid (options), kStale (a newer format),
  // kNoSpace, kIo. On error `why`, when given, becomes one line that names what is wrong and what to do. Runs the loop.
  static Result<std::unique_ptr<Node>> start(io::Loop& loop, Log& log, const NodeOptions& options,
                                             std::string* why = nullptr);
  // Ends all connections; unfinished puts leave no trace, what is not on flash yet is lost (see drain()). Not from
  // inside a callback of the loop that belongs to the node.
  virtual ~Node() = default;

  // Behind a start() with NodeOptions::serve_recovering, once: lets the store read what flash holds, while clients are
  // served what is known already (store::Store::recover()); until it returns, or the flash tier goes off, /healthz says
  // 503. Runs the loop, so not from a callback, and the node must not be destroyed meanwhile. A drain ends it early.
  // Errors as those of start(), with `why`.
  virtual Status recover(std::string* why = nullptr) = 0;

  // Where it listens, with the ports that the system chose, in the order of the options.
  [[nodiscard]] virtual std::vector<std::string> addresses() const = 0;
  // The same of the RESP front door.
  [[nodiscard]] virtual std::vector<std::string> resp_addresses() const = 0;
  // "HOST:PORT" of metrics and health; empty when off.
  [[nodiscard]] virtual std::string http_address() const = 0;

  // Serves the client at the other end of a connected stream, as if it had come through a listener. kUnavailable:
  // shutting down; kBusy: too many connections; kIo.
  virtual Status adopt(std::unique_ptr<io::Stream> stream) = 0;
  // The same of a Redis client.
  virtual Status adopt_resp(std::unique_ptr<io::Stream> stream) = 0;

  // Who may come in from now on; not null, and only where there were credentials from the start. Clients whose token is
  // not among them, or now of another tenant, lose their connection. Loop thread.
  virtual void set_authority(std::shared_ptr<const auth::Authority> authority) = 0;

  // The context of NodeOptions::tls has other files: clients whose certificate is not accepted any more lose their
  // connection, Redis clients all do and come back. Loop thread.
  virtual void judge_certificates() = 0;

  // Stops taking connections and requests, lets unfinished ones end for at most half of `limit`, writes what is dirty
  // to flash in the rest, then calls on_done from the loop. Once.
  virtual void drain(Duration limit, io::Callback on_done) = 0;

  // Statistics as JSON text. Loop thread.
  [[nodiscard]] virtual std::string stats_json() const = 0;
  [[nodiscard]] virtual store::Store& store() noexcept = 0;
};

}  // namespace kvd::node
