// Slabs that lie in the depot's memory: copied by this thread in bounded steps, between which callers are heard and no
// further message of the depot is taken, as while payload comes in; then given back. See core.h.
#include <algorithm>
#include <utility>

#include "client/core.h"

namespace kvd::client {

Status Core::on_get_view(Running& running, const wire::Header& header, Bytes meta) {
  const net::SharedMemory* const memory = running.channel->memory();
  if (memory == nullptr || header.status != Code::kOk) return fail(Code::kCorrupt, "a view of memory nobody has");
  const auto view = wire::decode<wire::GetView>(header, meta);
  if (!view) return fail(view.error());
  if (Status begun = running.get->begin_view(header, *view, memory->bytes()); !begun) return begun;
  receiving_ = &running;
  receiving_last_ = header.last();
  view_ = view->view;
  copy_view();
  return {};
}

// A view of a get that has ended here: nobody reads it.
Status Core::on_stray_view(Side& side, const wire::Header& header, Bytes meta) {
  if (side.channel.memory() == nullptr) return fail(Code::kCorrupt, "a view of memory nobody has");
  const auto view = wire::decode<wire::GetView>(header, meta);
  if (!view) return fail(view.error());
  release_view(view->view);
  return {};
}

// A turn of copying. Commands may end the get between two steps: nothing lands then.
void Core::copy_view() {
  const auto copying = [this] { return receiving_ != nullptr && receiving_->get->left() > 0; };
  for (std::size_t step = 0; step < kCopiesPerTurn && copying(); ++step) {
    receiving_->get->copy(kReceiveBytesMax);
    data_.channel.note_body();
    run_commands();
  }
  net::Connection& connection = data_.channel.connection();
  if (copying()) {
    connection.hold();
    return copy_timer_.arm(loop_.now());
  }
  connection.resume();
  release_view(std::exchange(view_, 0));
  if (Running* const running = std::exchange(receiving_, nullptr)) finish_get(*running, receiving_last_);
}

// Told at the end of the turn, so that several go in one message and nobody waits for it.
void Core::release_view(std::uint64_t view) {
  releases_.push_back(view);
  if (!release_timer_.armed()) release_timer_.arm(loop_.now());
}

void Core::send_releases() {
  const std::vector<std::uint64_t> views = std::exchange(releases_, {});
  if (!data_.channel.ready()) return;  // with its connection the depot has taken them all back
  for (std::size_t at = 0; at < views.size(); at += wire::kViewsPerReleaseMax) {
    const std::span some = std::span(views).subspan(at, std::min(wire::kViewsPerReleaseMax, views.size() - at));
    const wire::Header header{.request_id = kReleaseIds};
    data_.channel.connection().send(
        {.head = wire::frame(header, wire::Release{wire::U64View(some)}), .body = {}, .on_done = {}});
  }
  data_.channel.connection().flush();
}

void Core::forget_views() {
  view_ = 0;
  releases_.clear();
  copy_timer_.disarm();
  release_timer_.disarm();
}

}  // namespace kvd::client
