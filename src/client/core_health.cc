// The breaker and the comings and goings of connections. See core.h.
#include <utility>

#include "client/core.h"

namespace kvd::client {

void Core::fail_breaker() {
  if (!breaker_.on_failure(loop_.now())) return;
  state_.set_breaker_open(true);
  state_.breaker_opened.add();
  probe_timer_.arm(breaker_.probe_at());
}

void Core::suspect() {
  while (!stopped_ && !breaker_.open()) fail_breaker();
}

void Core::hurry() {
  control_.channel.hurry();
  data_.channel.hurry();
}

void Core::close_breaker() {
  breaker_.on_probe_success();
  probe_sent_ = false;
  probe_timer_.disarm();
  state_.set_breaker_open(false);
}

// A probe is due, or the one under way was not answered in time.
void Core::on_probe_timer() {
  if (!breaker_.open()) return;
  if (!std::exchange(probe_sent_, false) && control_.channel.ready()) {
    probe_sent_ = true;
    breaker_.on_probe_sent();
    const wire::Header header{.request_id = kPingIds | next_internal_id_++};
    control_.channel.connection().send({.head = wire::frame(header, wire::Ping{}), .body = {}, .on_done = {}});
    control_.channel.connection().flush();
    return probe_timer_.arm_in(breaker_.probe_period());
  }
  // The connections themselves may be what hangs (a host that vanished without a word): they are made anew.
  if (breaker_.on_probe_failure(loop_.now()) % kProbesBeforeReset == 0) {
    const Error why{Code::kTimeout, 0, "the depot does not answer"};
    for (Side* side : {&control_, &data_}) {
      if (side->channel.ready()) side->channel.reset(why);
    }
  }
  probe_timer_.arm(breaker_.probe_at());
}

// On the control connection, where no body is before the answer.
void Core::ask_for_word() {
  word_id_ = kPingIds | next_internal_id_++;
  control_.channel.connection().send(
      {.head = wire::frame({.request_id = word_id_}, wire::Ping{}), .body = {}, .on_done = {}});
  control_.channel.connection().flush();
}

void Core::on_ready(Channel& channel) {
  if (!is_data(channel) || !std::exchange(data_made_anew_, false)) {
    if (breaker_.open()) close_breaker();  // to be greeted is as good as a probe
    breaker_.on_success();
  }
  if (!is_data(channel)) data_.channel.note_word();
  if (channel.memory() != nullptr) prefault_.start(channel.memory());
  // Else nothing could be matched for up to a second.
  (is_data(channel) ? control_ : data_).channel.hurry();
  if (!control_.channel.ready() || !data_.channel.ready()) return;
  if (std::exchange(was_connected_, true)) state_.reconnects.add();
  state_.set_connected(true);
}

void Core::on_lost(Channel& channel, const Error& why, bool was_ready) {
  state_.set_error(why);
  if (!was_ready) return;
  state_.set_connected(false);
  if (!is_data(channel) || !data_made_anew_) fail_breaker();  // before operations end, see on_deadline()
  Side& side = side_of(channel);
  side.draining.clear();
  if (is_data(channel)) {
    receiving_ = nullptr;
    forget_views();
    puts_.clear();
    for (Running& running : running_) running.pumping = false;
  } else {
    unpins_ = 0;
    word_id_ = 0;
  }
  for (Running& running : running_) {
    if (running.id != 0 && running.channel == &channel) end(running, Code::kUnavailable, why.what);
  }
}

void Core::on_namespace(Channel& channel, NamespaceId ns) {
  for (Running& running : running_) {
    if (running.id == 0 || running.sent || running.channel != &channel) continue;
    Op& op = op_of(running);
    if (op.request.ns == ns) send_request(op, running);
  }
}

}  // namespace kvd::client
