// Resolver: turns an address into an endpoint without blocking its loop. Numbers, "localhost" and paths resolve at
// once; other names are asked for on a thread of their own, because getaddrinfo() can hang for many seconds when a name
// server is away. At most one such thread per resolver. Belongs to one loop.
#pragma once

#include <functional>
#include <memory>

#include "io/loop.h"
#include "net/address.h"

namespace kvd::client {

class Resolver {
 public:
  using OnDone = std::move_only_function<void(Result<net::Endpoint>)>;

  explicit Resolver(io::Loop& loop) : loop_(loop) {}
  ~Resolver() { cancel(); }
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // on_done comes from the loop or, when the answer is known, from inside. kBusy: the thread of an earlier attempt
  // still waits for its name server.
  void resolve(const net::Address& address, OnDone on_done);
  // on_done of the attempt under way will not come any more.
  void cancel();

 private:
  struct Shared;
  io::Loop& loop_;
  std::shared_ptr<Shared> shared_;  // owners: this, and the thread while it asks
};

}  // namespace kvd::client
