// Life of a connection: start, interest, stalls and the end. Receiving is in connection_read.cc, sending in
// connection_send.cc.
#include "net/connection.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvd::net {
namespace {

constexpr Duration kFarewellLimit = std::chrono::seconds(1);
constexpr std::uint64_t kFarewellBytesMin = std::uint64_t{32} << 10;  // as slow as a peer may be otherwise

}  // namespace

Connection::Connection(io::Loop& loop, MessageHandler& handler, NetCounters& counters,
                       std::unique_ptr<io::Stream> stream, const ConnectionOptions& options)
    : loop_(loop),
      handler_(handler),
      counters_(counters),
      options_(options),
      stream_(std::move(stream)),
      stall_timer_(loop, [this] { on_stall_timer(); }),
      closed_timer_(loop, [this] { on_closed_timer(); }),
      resume_timer_(loop, [this] { on_ready(io::Watch::kRead); }) {
  KVD_CHECK(stream_ != nullptr);
  if (options_.message_memory != nullptr)
    held_meta_.emplace(*options_.message_memory, [this] {
      close(kTooMuchUnfinished);
      give_back_meta();
    });
  if (options_.messages == nullptr) return;
  more_.emplace(*options_.messages, [this] {
    on_ready(io::Watch::kRead);
    return false;  // it stands in line again, if there is more
  });
}

Connection::~Connection() {
  KVD_CHECK(in_callback_ == 0);
  told_closed_ = true;
  close(Error{Code::kCancelled, 0, "the connection was destroyed"});
  while (!queue_.empty()) drop_queue();  // an on_done may have queued more
}

Status Connection::start() {
  last_received_ = last_sent_ = loop_.now();
  const Status started = stream_->start(loop_, [this](std::uint32_t ready) { on_ready(ready); });
  started_ = started.has_value();
  return started;
}

void Connection::on_ready(std::uint32_t ready) {
  if ((ready & io::Watch::kWrite) != 0) full_ = false;
  if ((ready & io::Watch::kRead) != 0) read_some();
  flush();
}

void Connection::set_share(const void* share) noexcept {
  BodyTurns::User::set_share(share);
  Movers::User::set_share(share);
  ShaperUser::set_share(share);
  if (more_) more_->set_share(share);
}

void Connection::on_body_turn() {
  if (std::exchange(reads_wait_, false) && state_ == State::kOpen) read_some();
  flush();
}

void Connection::close(const Error& why) {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  why_closed_ = why;
  stall_timer_.disarm();
  resume_timer_.disarm();
  if (options_.shaper != nullptr) options_.shaper->leave(*this);
  if (options_.turns != nullptr) options_.turns->leave(*this);
  if (more_) more_->leave();
  if (held_meta_) held_meta_->release();
  leave_movers();
  stream_->close();
  count_unsent();
  drop_queue();
  if (!told_closed_) closed_timer_.arm(loop_.now());
}

void Connection::hold() { held_ = true; }

void Connection::resume() {
  if (!std::exchange(held_, false) || state_ != State::kOpen) return;
  last_received_ = loop_.now();    // the peer was not waited for
  resume_timer_.arm(loop_.now());  // no readiness tells of the read-ahead
}

void Connection::close_after_flush(const Error& why) {
  if (state_ != State::kOpen) return;
  state_ = State::kFlushing;
  why_closed_ = why;
  stall_timer_.arm_in(kFarewellLimit);
  farewell_passed_ = passed_bytes();
  update_interest();
  flush();
}

void Connection::on_closed_timer() {
  drop_queue();
  if (std::exchange(told_closed_, true)) return;
  handler_.on_closed(why_closed_);  // may destroy this
}

void Connection::update_interest() {
  if (state_ == State::kClosed || !started_) return;
  std::uint32_t interest = io::Watch::kNone;
  if (state_ == State::kOpen && !paused_ && !held_) interest |= io::Watch::kRead;
  count_unsent();
  if ((full_ && !queue_.empty()) || unsent_ > 0) interest |= io::Watch::kWrite;
  if (const Status set = stream_->want(interest); !set) return close(set.error());
  watch_for_stall();
}

bool Connection::within_message() const noexcept {
  return !paused_ && !held_ && (part_ != Part::kHeader || ahead_at_ != ahead_end_);
}

// Bytes that have left the stream, too, as near as that is known.
std::uint64_t Connection::passed_bytes() const noexcept {
  return sent_bytes_ - std::min<std::uint64_t>(sent_bytes_, stream_->unsent());
}

// What the stream holds is in the common count of what waits for peers.
void Connection::count_unsent() {
  const std::size_t now = stream_->unsent();
  if (now > unsent_) counters_.owned_bytes.add(now - unsent_);
  if (now < unsent_) counters_.owned_bytes.sub(unsent_ - now);
  unsent_ = now;
}

// Notes since when, and from which byte on, the peer is waited for: until the message is in, until the queue and the
// stream are empty.
void Connection::watch_progress() {
  if (!within_message()) {
    receiving_.stop();
  } else {
    receiving_.watch(loop_.now(), received_bytes_, messages_);
  }
  const bool empty = queue_.empty() && stream_->unsent() == 0;
  if (empty || (!waits_for_reader() && !sending_.watched())) {
    sending_.stop();
  } else {
    sending_.watch(loop_.now(), passed_bytes());
  }
}

// Arms the stall timer when somebody waits for the peer. It is not moved at every byte: when it fires, it looks.
void Connection::watch_for_stall() {
  if (state_ != State::kOpen || options_.stall_limit == Duration::max()) return;
  watch_progress();
  if (!stall_timer_.armed() && (waits_for_reader() || within_message())) stall_timer_.arm_in(options_.stall_limit);
}

void Connection::on_stall_timer() {
  if (state_ == State::kFlushing) {
    if (passed_bytes() < farewell_passed_ + kFarewellBytesMin) return close(why_closed_);
    farewell_passed_ = passed_bytes();
    return stall_timer_.arm_in(kFarewellLimit);
  }
  Time next = kNever;
  if (full_) next = after(last_sent_, options_.stall_limit);
  if (within_message()) next = std::min(next, after(last_received_, options_.stall_limit));
  const Progress::Pace pace{options_.stall_limit, options_.progress_bytes_min};
  next = std::min({next, receiving_.slow_at(loop_.now(), received_bytes_, pace),
                   sending_.slow_at(loop_.now(), passed_bytes(), pace)});
  if (next == kNever) return;
  if (next > loop_.now()) return stall_timer_.arm(next);
  counters_.stalled.add();
  close(Error{Code::kTimeout, 0, "the peer made no progress"});
}

}  // namespace kvd::net
