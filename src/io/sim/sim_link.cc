#include "io/sim/sim_link.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace kvd::io {
namespace {

Duration between(Random& random, Duration min, Duration max) {
  return min + Duration(static_cast<Duration::rep>(random.below(static_cast<std::uint64_t>((max - min).count()) + 1)));
}

std::size_t total_bytes(std::span<const iovec> pieces) {
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

}  // namespace

// One end of a link, as its user sees it.
class SimStream final : public Stream {
 public:
  SimStream(SimLink& link, SimLink::End end) : link_(link), end_(end) { ++link_.streams_; }
  ~SimStream() override {
    link_.close(end_);
    --link_.streams_;
  }

  Status start(Loop& loop, Watch::OnReady on_ready) override {
    KVD_CHECK(&loop == &link_.net_.loop_);
    link_.sides_[end_].on_ready = std::move(on_ready);
    link_.want(end_, Watch::kRead);
    return {};
  }
  Status want(std::uint32_t interest) override {
    link_.want(end_, interest);
    return {};
  }
  Result<std::size_t> receive(std::span<const iovec> places, PrivateFd*) override {
    return link_.receive(end_, places);
  }
  Result<std::size_t> send(std::span<const iovec> pieces, int descriptor) override {
    KVD_CHECK(descriptor < 0);
    return link_.send(end_, pieces);
  }
  void end_sending() override { link_.end_sending(end_); }
  void close() override { link_.close(end_); }
  bool set_read_mark(std::size_t bytes) override {
    link_.sides_[end_].mark = std::min(bytes, link_.net_.model_.window_bytes / 2);
    link_.update(end_);
    return true;
  }
  [[nodiscard]] bool is_local() const noexcept override { return false; }
  [[nodiscard]] int fd() const noexcept override { return -1; }

 private:
  SimLink& link_;
  const SimLink::End end_;
};

SimLink::SimLink(SimNet& net, std::string name, std::uint64_t seed)
    : net_(net),
      name_(std::move(name)),
      random_(seed),
      latency_(between(random_, net.model_.latency_min, net.model_.latency_max)),
      sides_{Side(
                 net.loop_, [this] { on_arrival(kNear); }, [this] { on_ready_timer(kNear); }),
             Side(
                 net.loop_, [this] { on_arrival(kFar); }, [this] { on_ready_timer(kFar); })},
      silence_timer_(net.loop_, [this] { break_off(ETIMEDOUT); }),
      cut_timer_(net.loop_, [this] { break_off(ECONNRESET); }) {}

std::unique_ptr<Stream> SimLink::stream(End end) { return std::make_unique<SimStream>(*this, end); }

Result<std::size_t> SimLink::receive(End end, std::span<const iovec> places) {
  Side& side = sides_[end];
  if (side.closed) return fail(Code::kIo, "receive from the peer", EBADF);
  std::size_t got = 0;
  for (const iovec& place : places) {
    const std::size_t n = std::min(place.iov_len, side.arrived.size() - side.taken);
    if (n == 0) break;
    std::memcpy(place.iov_base, side.arrived.data() + side.taken, n);
    side.taken += n;
    got += n;
  }
  if (side.taken == side.arrived.size()) {
    side.arrived.clear();
    side.taken = 0;
  }
  side.held -= got;
  update(end);
  update(other(end));  // it has room again
  if (got > 0) return got;
  if (side.error != 0) return fail(Code::kUnavailable, "receive from the peer", side.error);
  if (side.ended) return std::size_t{0};
  return fail(Code::kBusy, "receive from the peer");
}

Result<std::size_t> SimLink::send(End end, std::span<const iovec> pieces) {
  Side& side = sides_[end];
  Side& to = sides_[other(end)];
  if (side.closed) return fail(Code::kIo, "send to the peer", EBADF);
  if (side.error != 0) return fail(Code::kUnavailable, "send to the peer", side.error);
  if (side.peer_closed || side.sending_ended) return fail(Code::kUnavailable, "send to the peer", EPIPE);
  const std::size_t room = net_.model_.window_bytes - std::min(net_.model_.window_bytes, to.held);
  std::size_t left = std::min(room, total_bytes(pieces));
  if (left == 0) return fail(Code::kBusy, "send to the peer");
  if (random_.chance(1, 16)) left = 1 + random_.below(left);  // full for a moment
  const std::size_t sent = left;
  std::vector<std::byte> segment;
  std::size_t segment_bytes = 0;
  for (const iovec& piece : pieces) {
    const auto* from = static_cast<const std::byte*>(piece.iov_base);
    for (std::size_t n = std::min(piece.iov_len, left); n > 0;) {
      if (segment_bytes == 0) {
        const bool small = random_.chance(1, 8);
        segment_bytes = 1 + random_.below(small ? 100 : net_.model_.segment_bytes_max);
      }
      const std::size_t part = std::min(n, segment_bytes - segment.size());
      segment.insert(segment.end(), from, from + part);
      from += part;
      n -= part;
      left -= part;
      if (segment.size() < segment_bytes && left > 0) continue;
      if (end == kNear && tap_ != nullptr && tap_->size() + segment.size() <= tap_bytes_max_) {
        tap_->insert(tap_->end(), segment.begin(), segment.end());
      }
      send_segment(other(end), std::exchange(segment, {}));
      segment_bytes = 0;
    }
  }
  return sent;
}

// Towards `to`, with what may go wrong on the way.
void SimLink::send_segment(End to, std::vector<std::byte> bytes) {
  Side& side = sides_[to];
  ++net_.counters_.segments;
  net_.counters_.bytes += bytes.size();
  side.held += bytes.size();
  if (silent_ || cut_) return;
  if (net_.draw(net_.rates_.silence, net_.counters_.silent)) return go_silent();
  if (net_.draw(net_.rates_.flip, net_.counters_.flipped)) {
    bytes[random_.below(bytes.size())] ^= static_cast<std::byte>(1U << random_.below(8));
  }
  const bool cut = net_.draw(net_.rates_.cut, net_.counters_.cut);
  if (cut) bytes.resize(random_.below(bytes.size() + 1));
  if (net_.draw(net_.rates_.pause, net_.counters_.paused)) {
    side.line_free = std::max(side.line_free, net_.loop_.now()) + between(random_, {}, net_.rates_.pause_max);
  }
  dispatch(to, {.at = {}, .kind = Kind::kData, .bytes = std::move(bytes)});
  if (cut) cut_at(side.last_at);
}

// Puts a segment on the line.
void SimLink::dispatch(End to, Segment segment) {
  Side& side = sides_[to];
  const Time now = net_.loop_.now();
  side.line_free = std::max(side.line_free, now);
  if (net_.model_.bytes_per_second > 0) {
    side.line_free +=
        Duration(static_cast<Duration::rep>(segment.bytes.size() * 1'000'000'000 / net_.model_.bytes_per_second));
  }
  segment.at = side.line_free + latency_ + between(random_, {}, net_.model_.jitter_max);
  side.last_at = segment.at = std::max(segment.at, side.last_at);
  side.coming.push_back(std::move(segment));
  if (!side.arrival.armed()) side.arrival.arm(side.coming.front().at);
}

// What is on its way arrives until then; what is sent from now on is lost.
void SimLink::cut_at(Time at) {
  cut_ = true;
  cut_timer_.arm(at);
}

void SimLink::on_arrival(End end) {
  Side& side = sides_[end];
  while (!side.coming.empty() && side.coming.front().at <= net_.loop_.now()) {
    const Segment segment = std::move(side.coming.front());
    side.coming.pop_front();
    switch (segment.kind) {
      case Kind::kData:
        if (side.closed) break;
        side.arrived.insert(side.arrived.end(), segment.bytes.begin(), segment.bytes.end());
        break;
      case Kind::kClose: side.peer_closed = true; [[fallthrough]];
      case Kind::kEnd: side.ended = true; break;
      case Kind::kReset: side.error = ECONNRESET; break;
    }
  }
  if (!side.coming.empty()) side.arrival.arm(side.coming.front().at);
  update(end);
}

void SimLink::end_sending(End end) {
  Side& side = sides_[end];
  if (side.closed || std::exchange(side.sending_ended, true) || silent_ || cut_) return;
  dispatch(other(end), {.at = {}, .kind = Kind::kEnd, .bytes = {}});
}

// Who leaves bytes unread resets the connection, as the kernel does.
void SimLink::close(End end) {
  Side& side = sides_[end];
  if (std::exchange(side.closed, true)) return;
  side.ready.disarm();
  side.interest = Watch::kNone;
  if (end == kNear) tap_ = nullptr;
  const bool unread = side.taken < side.arrived.size();
  std::vector<std::byte>().swap(side.arrived);
  side.taken = 0;
  if (silent_ || cut_ || side.error != 0) return;
  dispatch(other(end), {.at = {}, .kind = unread ? Kind::kReset : Kind::kClose, .bytes = {}});
}

void SimLink::want(End end, std::uint32_t interest) {
  if (sides_[end].closed) return;
  sides_[end].interest = interest;
  update(end);
}

std::uint32_t SimLink::ready(End end) const {
  const Side& side = sides_[end];
  if (side.closed || side.interest == Watch::kNone) return Watch::kNone;
  if (side.error != 0) return Watch::kRead | Watch::kWrite;
  std::uint32_t can = Watch::kNone;
  if (side.ended || side.arrived.size() - side.taken >= side.mark) can |= Watch::kRead;
  if (side.peer_closed || sides_[other(end)].held < net_.model_.window_bytes) can |= Watch::kWrite;
  return can & side.interest;
}

void SimLink::update(End end) {
  Side& side = sides_[end];
  if (side.on_ready && ready(end) != Watch::kNone && !side.ready.armed()) side.ready.arm(net_.loop_.now());
}

void SimLink::on_ready_timer(End end) {
  const std::uint32_t bits = ready(end);
  if (bits == Watch::kNone) return;
  sides_[end].on_ready(bits);
  update(end);
}

void SimLink::go_silent() {
  if (std::exchange(silent_, true)) return;
  for (Side& side : sides_) {
    side.coming.clear();
    side.arrival.disarm();
  }
  cut_timer_.disarm();
  silence_timer_.arm_in(net_.model_.silence_max);
}

void SimLink::reset() { break_off(ECONNRESET); }

void SimLink::break_off(int error) {
  cut_ = true;
  for (const End end : {kNear, kFar}) {
    Side& side = sides_[end];
    side.coming.clear();
    side.arrival.disarm();
    if (side.error == 0) side.error = error;
    update(end);
  }
}

}  // namespace kvd::io
