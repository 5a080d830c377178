#include "client/testing/proxy.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/check.h"

namespace kvd::client {

// One direction of a link: what was read and not yet written, with its own pair of watches on duplicated descriptors
// (a loop takes a descriptor once).
class Flow {
 public:
  using Rewrite = std::function<std::vector<std::byte>(Bytes)>;
  Flow(io::Loop& loop, int from, int to, Proxy::Limit limit, std::function<void()> on_end, Rewrite rewrite = {})
      : from_(::dup(from)),
        to_(::dup(to)),
        limit_(limit),
        on_end_(std::move(on_end)),
        rewrite_(std::move(rewrite)),
        read_(loop, [this](std::uint32_t) { move(); }),
        write_(loop, [this](std::uint32_t) { move(); }) {
    KVD_CHECK(read_.start(from_.get(), io::Watch::kRead).has_value());
    KVD_CHECK(write_.start(to_.get(), io::Watch::kNone).has_value());
  }

  void set_limit(Proxy::Limit limit) {
    limit_ = limit;
    move();
  }
  void stop() {
    read_.stop();
    write_.stop();
    from_.reset();
    to_.reset();
  }
  [[nodiscard]] std::uint64_t forwarded() const noexcept { return forwarded_; }

 private:
  void move() {
    if (!from_.ok()) return;
    for (;;) {
      if (!left_.empty()) {
        const ssize_t wrote = ::send(to_.get(), left_.data(), left_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (wrote < 0) return errno == EAGAIN ? wait(false, true) : on_end_();
        left_ = left_.subspan(static_cast<std::size_t>(wrote));
        if (!rewrite_) forwarded_ += static_cast<std::uint64_t>(wrote);
        continue;
      }
      const std::uint64_t left = limit_.bytes - std::min(limit_.bytes, forwarded_);
      if (left == 0) return limit_.then == Proxy::Then::kCut ? on_end_() : wait(false, false);
      const std::size_t n = static_cast<std::size_t>(std::min<std::uint64_t>(left, buffer_.size()));
      const ssize_t got = ::recv(from_.get(), buffer_.data(), n, MSG_DONTWAIT);
      if (got < 0 && errno == EAGAIN) return wait(true, false);
      if (got <= 0) return on_end_();
      left_ = Bytes(buffer_).first(static_cast<std::size_t>(got));
      if (!rewrite_) continue;
      forwarded_ += left_.size();
      rewritten_ = rewrite_(left_);
      left_ = rewritten_;
    }
  }
  void wait(bool readable, bool writable) {
    KVD_CHECK(read_.set(readable ? io::Watch::kRead : io::Watch::kNone).has_value());
    KVD_CHECK(write_.set(writable ? io::Watch::kWrite : io::Watch::kNone).has_value());
  }

  io::UniqueFd from_, to_;
  Proxy::Limit limit_;
  std::function<void()> on_end_;
  Rewrite rewrite_;
  io::Watch read_, write_;
  std::array<std::byte, 65536> buffer_{};
  std::vector<std::byte> rewritten_;
  Bytes left_;  // of what came, still to be sent
  std::uint64_t forwarded_ = 0;
};

class Proxy::Link {
 public:
  Link(Proxy& proxy, std::size_t index, io::UniqueFd client)
      : proxy_(proxy), index_(index), client_(std::move(client)), dialer_(proxy.loop_) {
    dialer_.connect(proxy.target_, kNever, [this](Result<std::unique_ptr<io::Stream>> stream) {
      if (!stream) return end();
      depot_ = io::UniqueFd(::dup((*stream)->fd()));
      const auto on_end = [this] { end(); };
      Flow::Rewrite rewrite;
      if (proxy_.rewrite_) rewrite = [this](Bytes bytes) { return proxy_.rewrite_(index_, bytes); };
      down_ = std::make_unique<Flow>(proxy_.loop_, depot_.get(), client_.get(), proxy_.down_[index_], on_end,
                                     std::move(rewrite));
      up_ = std::make_unique<Flow>(proxy_.loop_, client_.get(), depot_.get(), proxy_.up_[index_], on_end);
    });
  }

  void end() {
    if (down_ != nullptr) down_->stop();
    if (up_ != nullptr) up_->stop();
    if (client_.ok()) ::shutdown(client_.get(), SHUT_RDWR);
    if (depot_.ok()) ::shutdown(depot_.get(), SHUT_RDWR);
    client_.reset();
    depot_.reset();
  }
  [[nodiscard]] Flow* down() const noexcept { return down_.get(); }
  [[nodiscard]] Flow* up() const noexcept { return up_.get(); }

 private:
  Proxy& proxy_;
  std::size_t index_;
  io::UniqueFd client_, depot_;
  net::SocketDialer dialer_;
  std::unique_ptr<Flow> down_, up_;
};

Proxy::Proxy(io::Loop& loop, const std::string& listen, const std::string& target)
    : loop_(loop), target_(*net::resolve(*net::parse_address(target))) {
  auto listener = net::Listener::bind(loop, *net::parse_address(listen));
  KVD_CHECK(listener.has_value());
  listener_ = std::move(*listener);
  KVD_CHECK(listener_->start([this](io::UniqueFd socket) { on_accept(std::move(socket)); }).has_value());
}

Proxy::~Proxy() = default;

void Proxy::on_accept(io::UniqueFd socket) {
  links_.push_back(std::make_unique<Link>(*this, links_.size(), std::move(socket)));
}

void Proxy::limit_down(std::size_t link, Limit limit) {
  down_[link] = limit;
  if (link < links_.size() && links_[link]->down() != nullptr) links_[link]->down()->set_limit(limit);
}

void Proxy::limit_up(std::size_t link, Limit limit) {
  up_[link] = limit;
  if (link < links_.size() && links_[link]->up() != nullptr) links_[link]->up()->set_limit(limit);
}

std::uint64_t Proxy::forwarded_down(std::size_t link) const { return links_.at(link)->down()->forwarded(); }
std::uint64_t Proxy::forwarded_up(std::size_t link) const { return links_.at(link)->up()->forwarded(); }

}  // namespace kvd::client
