// Proxy: stands between a client and a depot and forwards bytes up to a limit per link and direction. At the limit it
// holds them back or cuts the link, so that a test can stop a conversation at any byte. Links are numbered in the
// order they were accepted. Belongs to one loop.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "net/dialer.h"
#include "net/listener.h"

namespace kvd::client {

class Proxy {
 public:
  enum class Then : std::uint8_t { kHold, kCut };
  struct Limit {
    std::uint64_t bytes = UINT64_MAX;
    Then then = Then::kHold;
  };

  Proxy(io::Loop& loop, const std::string& listen, const std::string& target);
  ~Proxy();

  [[nodiscard]] std::string address() const { return listener_->address().text(); }
  // Bytes from the depot to the client (down) and from the client (up) on link `link`, counted from its start. May be
  // set before the link exists and raised later.
  void limit_down(std::size_t link, Limit limit);
  void limit_up(std::size_t link, Limit limit);
  // What comes from the depot on links that are made from now on goes through `rewrite`: it gets bytes as they come,
  // and the link's number, and gives those that go on. Limits count what came.
  using Rewrite = std::function<std::vector<std::byte>(std::size_t link, Bytes bytes)>;
  void rewrite_down(Rewrite rewrite) { rewrite_ = std::move(rewrite); }
  [[nodiscard]] std::size_t links() const noexcept { return links_.size(); }
  [[nodiscard]] std::uint64_t forwarded_down(std::size_t link) const;
  [[nodiscard]] std::uint64_t forwarded_up(std::size_t link) const;

 private:
  class Link;
  void on_accept(io::UniqueFd socket);

  io::Loop& loop_;
  std::unique_ptr<net::Listener> listener_;
  net::Endpoint target_;
  std::map<std::size_t, Limit> down_, up_;
  Rewrite rewrite_;
  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace kvd::client
