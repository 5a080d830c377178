// GETs of clients that may not see the pool and have memory of their own (net/window.h): their slabs are copied there.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "node/session.h"

namespace kvd::node {
namespace {

// What the first copy into a place counts for, as its pages are made then: 1 MiB took 4 ms in a virtual machine, 0.1
// later. So a slice makes 64 KiB of them.
constexpr std::size_t kFreshTimes = 16;

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

// The next message goes through the window: it fits, whenever there is room, and its view can be kept count of. One
// without slabs has nothing to copy.
bool Session::goes_through_window(const RunningGet& get) {
  if (window_ == nullptr) return false;
  const std::uint64_t bytes = get.op->next_bytes(window_->size() / 2);
  const bool fits = bytes <= window_->size() && views_.has_room();
  if (!fits) context_.counters.get_window_refused.add();
  return fits && bytes > 0;
}

// Begins the next message of a GET, which is made when its slabs have been copied: of several layers if they take half
// of the window, so that the client copies out of one half while the other is filled. False: there is no room until the
// client gives some back.
bool Session::begin_copying(RunningGet& get) {
  KVD_CHECK(!copying_);
  const std::uint64_t bytes_max = window_->size() / 2;
  const std::uint64_t bytes = get.op->next_bytes(bytes_max);
  const auto stretch = window_->take(bytes);
  if (!stretch) return false;
  copying_ = Copying{.op = get.op,
                     .view = views_.next_id(),
                     .stretch = stretch->id,
                     .at = stretch->offset,
                     .place = stretch->bytes,
                     .bytes = bytes,
                     .message = get.op->next_copied(views_.next_id(), stretch->offset, bytes_max)};
  return true;
}

// With its last slab the message is sent.
void Session::go_on_copying() {
  if (!copy_some()) return window_slices_.enter();
  RunningGet& get = *gets_by_id_.at(copying_->op->request().id);
  KVD_CHECK(get.op == copying_->op);  // who ends one drops its copying
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
    const std::size_t times = now.at >= window_->touched() ? kFreshTimes : 1;
    const std::size_t n = std::min(rest.size(), (copies_left_ + times - 1) / times);
    std::memcpy(now.place.data(), rest.data(), n);
    now.place = now.place.subspan(n);
    now.at += n;
    window_->note_written(now.at);
    copies_left_ -= std::min(copies_left_, n * times);
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
    on_window_room();
  });
  return message;
}

// Who waits for room looks again. That what came is too little changes nothing of its turn, but the client is not
// stuck.
void Session::on_window_room() {
  if (!waits_for_window_) return;
  window_waits_since_ = context_.loop.now();
  schedule_pump();
}

// Its GET has ended. True when it was that of this one.
bool Session::drop_copying(const GetOp& op) {
  if (!copying_ || copying_->op.get() != &op) return false;
  Copying dropped = std::move(*copying_);
  copying_.reset();
  window_->give_back(dropped.stretch);
  if (dropped.message.on_done) dropped.message.on_done();
  return true;
}

// A slice of copying: on the line, so that however many clients get much, others wait for one of them.
bool Session::copy_next() {
  if (connection_->closed()) return false;
  copies_left_ = context_.limits.copied_in_slice;
  pump_all();  // comes back into the line if there is more
  copies_left_ = 0;
  return false;
}

}  // namespace kvd::node
