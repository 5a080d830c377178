// GETs of clients that may not see the pool and have memory of their own (net/window.h): their slabs are copied there.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "node/session.h"

namespace kvd::node {
namespace {

// Copied before others get their turn: 0.1 ms or less. Less of it at once: small GETs do not stand in line.
constexpr std::size_t kCopiedInSlice = std::size_t{1} << 20;
constexpr std::size_t kCopiedAtOnce = std::size_t{256} << 10;

}  // namespace

// Whether this connection can have a window; it is made then.
bool Session::make_window() {
  const std::uint64_t bytes = context_.limits.window_bytes;
  if (bytes == 0 || context_.windows.bytes_max() < bytes) return false;
  if (!connection_->is_local() || !owns(auth::Right::kRead)) return false;
  if (tenant_ != nullptr) window_seat_ = context_.gate.take_window(tenant_);
  if (tenant_ != nullptr && !window_seat_.share) return false;
  window_share_ = context_.windows.take(bytes);
  auto window = window_share_ ? net::Window::create(bytes) : fail(Code::kBusy, "there are no more windows");
  if (!window) {
    window_share_.release();
    window_seat_.share.release();
    return false;
  }
  window_ = std::move(*window);
  return true;
}

void Session::offer_window() {
  connection_->send({.head = wire::frame({}, wire::Memory{.bytes = window_->size()}),
                     .body = {},
                     .on_done = {},
                     .descriptor = window_->fd()});
}

// What a turn may copy without standing in line.
void Session::refill_copies() { copies_left_ = window_slices_.waits() ? 0 : kCopiedAtOnce; }

// The next message goes through the window: it fits, whenever there is room. One without slabs has nothing to copy.
bool Session::goes_through_window(const RunningGet& get) const {
  const std::uint64_t bytes = window_ == nullptr ? 0 : get.op->next_bytes();
  return bytes > 0 && bytes <= window_->stretch_max();
}

// Begins the next message of a GET, which is made when its slabs have been copied. False: there is no room for them, or
// none for its view, until the client gives some back.
bool Session::begin_copying(RunningGet& get) {
  KVD_CHECK(!copying_);
  const auto stretch = views_.has_room() ? window_->take(get.op->next_bytes()) : std::nullopt;
  if (!stretch) return false;
  copying_ = Copying{.get = get.op->request().id,
                     .view = views_.next_id(),
                     .stretch = stretch->id,
                     .place = stretch->bytes,
                     .bytes = get.op->next_bytes(),
                     .message = get.op->next_copied(views_.next_id(), stretch->offset)};
  return true;
}

// With its last slab the message is sent.
void Session::go_on_copying() {
  if (!copy_some()) return window_slices_.enter();
  RunningGet& get = *gets_by_id_.at(copying_->get);
  const std::uint64_t view = copying_->view;
  send_next(get, take_copied(lasts_until(*get.op)), view);
  get.op->advance();
}

// As much of it as this turn may copy. True when all is copied.
bool Session::copy_some() {
  Copying& now = *copying_;
  const std::vector<Bytes>& slabs = now.message.body;
  while (now.slab < slabs.size() && copies_left_ > 0) {
    const Bytes rest = slabs[now.slab].subspan(now.offset);
    const std::size_t n = std::min(rest.size(), copies_left_);
    std::memcpy(now.place.data(), rest.data(), n);
    now.place = now.place.subspan(n);
    copies_left_ -= n;
    now.offset += n;
    if (n < rest.size()) return false;
    now.offset = 0;
    ++now.slab;
  }
  return now.slab == slabs.size();
}

// The message that tells of what was copied. What it was copied from is not needed any more.
net::Outgoing Session::take_copied(Time until) {
  Copying copied = std::move(*copying_);
  copying_.reset();
  net::Outgoing message = std::move(copied.message);
  message.body.clear();
  if (io::Callback unpin = std::exchange(message.on_done, nullptr)) unpin();
  context_.counters.get_window_bytes.add(copied.bytes);
  views_.add(copied.bytes, until, [this, stretch = copied.stretch] {
    window_->give_back(stretch);
    if (std::exchange(waits_for_window_, false)) schedule_pump();
  });
  return message;
}

// Its GET has ended. True when it was that of this one.
bool Session::drop_copying(std::uint64_t get) {
  if (!copying_ || copying_->get != get) return false;
  Copying dropped = std::move(*copying_);
  copying_.reset();
  window_->give_back(dropped.stretch);
  if (dropped.message.on_done) dropped.message.on_done();
  return true;
}

// A slice of copying: on the line, so that however many clients get much, others wait for one of them.
bool Session::copy_next() {
  if (connection_->closed()) return false;
  copies_left_ = kCopiedInSlice;
  pump_all();  // comes back into the line if there is more
  return false;
}

}  // namespace kvd::node
