// HttpServer: a small HTTP/1.1 server for metrics and health, on Boost.Beast in one thread of its own, so that a probe
// is answered while the node's loop recovers a store.
//
// GET and HEAD only. The thread has a lower priority than the program's others (nice 10). Loopback addresses only until there is authentication. Bounds: 64 connections, requests of at most
// 8 KiB, 5 s for a request or its answer, 60 s idle, 100 requests a connection. Who comes when there are 64 takes the
// place of the one that has waited for its peer for longest: peers that say nothing keep no probe out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "http/message.h"

namespace kvd::http {

class HttpServer {
 public:
  // Answers a request for a path ("/metrics", without its query). Called on the server's thread, must be safe against
  // the other threads of the program and must not throw.
  using Handler = std::function<Response(std::string_view path)>;

  // Whether `address` can be read, before anything is opened. kInvalid. Pure.
  static Status check(const std::string& address);
  // Listens on "HOST:PORT" (port 0: the system chooses) and starts the thread. kInvalid: not an address, or one that
  // other machines reach; kBusy: in use; kIo.
  static Result<std::unique_ptr<HttpServer>> start(const std::string& address, Handler handler);
  // Stops at once: connections end, the thread is joined. Blocks for a running handler.
  virtual ~HttpServer() = default;
  // "127.0.0.1:7071".
  [[nodiscard]] virtual std::string address() const = 0;
};

}  // namespace kvd::http
