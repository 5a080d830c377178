#include "client/resolver.h"

#include <arpa/inet.h>

#include <array>
#include <mutex>
#include <system_error>
#include <thread>

namespace kvd::client {

struct Resolver::Shared {
  std::mutex mutex;
  io::Loop* loop = nullptr;  // null once nobody waits any more
  bool asking = true;
  OnDone on_done;  // loop thread only
};

namespace {

bool is_name(const net::Address& address) {
  std::array<unsigned char, 16> number{};
  return address.kind == net::Address::Kind::kTcp && address.host != "localhost" &&
         ::inet_pton(AF_INET, address.host.c_str(), number.data()) != 1 &&
         ::inet_pton(AF_INET6, address.host.c_str(), number.data()) != 1;
}

}  // namespace

void Resolver::resolve(const net::Address& address, OnDone on_done) {
  if (!is_name(address)) return on_done(net::resolve(address));
  if (shared_ != nullptr) {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->asking) return on_done(fail(Code::kBusy, "the name server has not answered"));
  }
  shared_ = std::make_shared<Shared>();
  shared_->loop = &loop_;
  shared_->on_done = std::move(on_done);
  const auto ask = [shared = shared_, address] {
    const Result<net::Endpoint> endpoint = net::resolve(address);
    const std::lock_guard lock(shared->mutex);
    shared->asking = false;
    if (shared->loop == nullptr) return;
    shared->loop->post([shared, endpoint] {
      {
        const std::lock_guard relock(shared->mutex);
        if (shared->loop == nullptr) return;
      }
      std::exchange(shared->on_done, {})(endpoint);
    });
  };
  try {
    std::thread(ask).detach();
  } catch (const std::system_error&) {
    OnDone failed = std::move(shared_->on_done);
    shared_.reset();
    failed(fail(Code::kUnavailable, "start a thread to resolve a name"));
  }
}

void Resolver::cancel() {
  if (shared_ == nullptr) return;
  const std::lock_guard lock(shared_->mutex);
  shared_->loop = nullptr;
  shared_->on_done = {};
}

}  // namespace kvd::client
