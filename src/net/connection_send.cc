// The sending half of Connection: a queue of messages whose heads are owned and whose bodies are somebody's pinned
// memory, handed to the stream many at a time.
#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "net/connection.h"

namespace kvd::net {
namespace {

constexpr std::size_t kSendPiecesMax = 1024;                   // IOV_MAX on Linux
constexpr std::size_t kSendBytesMax = std::size_t{4} << 20;    // per call: tcp_wmem's usual maximum
constexpr std::size_t kFlushBytesMax = std::size_t{16} << 20;  // per turn of the loop, so that others get theirs

constexpr std::size_t kOwnedBytesCrowded = std::size_t{64} << 10;
constexpr Duration kSendTurnMax = std::chrono::milliseconds(1);

constexpr int kFarewellReadsMax = 64;  // 256 KiB: a request to the wrong protocol

constexpr std::array<std::byte, 65536> kZeros{};

}  // namespace

SendId Connection::send(Outgoing message) {
  Queued queued{.id = next_id_++, .message = std::move(message)};
  own(queued.message.head.size());
  queued_bytes_ += queued.message.head.size();
  for (const Bytes piece : queued.message.body) {
    KVD_CHECK(!piece.empty());
    queued_bytes_ += piece.size();
  }
  queue_.push_back(std::move(queued));
  counters_.messages_out.add();
  if (congested()) was_congested_ = true;
  if (state_ == State::kClosed && !closed_timer_.armed()) closed_timer_.arm(loop_.now());
  return queue_.back().id;
}

void Connection::flush() {
  if (flushing_ || state_ == State::kClosed) return;
  flushing_ = true;
  std::size_t budget = kFlushBytesMax;
  Time turn_end = kNever;  // counts from the first call's end
  do {
    while (flush_some(budget)) {
      if (turn_end == kNever) turn_end = after(last_sent_, kSendTurnMax);
      if (last_sent_ >= turn_end) budget = 0;
    }
  } while (tell_drained());
  flushing_ = false;
  tokens_ = 0;
  if (state_ == State::kClosed) return;
  if (paused_ && owned_bytes_ <= owned_bytes_allowed() / 2) resume_timer_.arm(loop_.now());
  // The last request of a turn may have gone beyond the bound: no more is taken until the peer has read.
  if (owned_bytes_ > options_.owned_bytes_max * (paused_ || yielded_ ? 2 : 1)) {
    counters_.stalled.add();
    return close(Error{Code::kNoSpace, 0, "the peer does not read its replies"});
  }
  if (state_ == State::kFlushing && queue_.empty()) {
    // The peer sees the last message and then the end, and not a reset because of bytes that nobody read.
    stream_->end_sending();
    std::array<std::byte, 4096> rest;
    const std::array<iovec, 1> place{{{rest.data(), rest.size()}}};
    for (int i = 0; i < kFarewellReadsMax && stream_->receive(place, nullptr).value_or(0) > 0; ++i) {
    }
    if (stream_->unsent() == 0) return close(why_closed_);
  }
  update_interest();
}

// Of bodies, in one call; 0: others move theirs now.
std::size_t Connection::body_slice() {
  if (options_.turns == nullptr || queued_bytes_ <= owned_bytes_ + BodyTurns::kSmallBytes) return kSendBytesMax;
  return std::min(options_.turns->ask(*this, !shares_movers_), kSendBytesMax);
}

// One call of the stream. Returns whether another one makes sense now.
bool Connection::flush_some(std::size_t& budget) {
  if (state_ == State::kClosed || queue_.empty() || full_ || moves() || hand_over()) return false;
  std::size_t body_max = kSendBytesMax;
  if (options_.shaper != nullptr) {
    if (tokens_ == 0) tokens_ = options_.shaper->ask(*this);
    if (tokens_ == 0) sending_.stop();  // the peer is not what is waited for
    body_max = tokens_;
  } else {
    body_max = body_slice();
  }
  std::array<iovec, kSendPiecesMax> pieces;
  // An encrypted stream keeps what its peer does not read.
  const std::size_t bytes_max = stream_->is_secure() && is_crowded() ? kOwnedBytesCrowded : kSendBytesMax;
  const Batch batch = gather_queue(pieces, std::min(budget, bytes_max), body_max);
  if (batch.bytes == 0) {
    if (budget == 0) full_ = true;  // as good as: the loop comes back at once
    return false;
  }
  const Queued& front = queue_.front();
  const int descriptor = front.started() ? -1 : front.message.descriptor;
  const Result<std::size_t> sent = stream_->send(std::span(pieces).first(batch.pieces), descriptor);
  counters_.send_calls.add();
  if (!sent) {
    full_ = sent.error().code == Code::kBusy;
    if (!full_) close(sent.error());
    return false;
  }
  const std::size_t bytes = *sent;
  budget -= std::min(budget, bytes);
  counters_.bytes_out.add(bytes);
  sent_bytes_ += bytes;
  last_sent_ = loop_.now();
  full_ = bytes < batch.bytes;
  advance_queue(batch, bytes);
  return !full_;
}

Connection::Batch Connection::gather_queue(std::span<iovec> out, std::size_t bytes_max, std::size_t body_max) const {
  Batch batch;
  for (const Queued& queued : queue_) {
    // A head goes with the first of its body, unless a shaper counts the latter.
    const bool waits = body_max == 0 && options_.shaper == nullptr;
    if (waits && !queued.started() && !queued.message.body.empty()) return batch;
    if (queued.message.descriptor >= 0 && batch.pieces > 0) return batch;  // it goes with the first byte of a call
    for (std::size_t i = queued.piece; i < queued.pieces(); ++i) {
      Bytes piece = queued.at(i);
      if (i == queued.piece) piece = piece.subspan(queued.offset);
      std::size_t n = std::min(piece.size(), bytes_max - batch.bytes);
      if (i > 0) n = std::min(n, body_max - batch.body_bytes);
      if (n == 0 || batch.pieces == out.size()) return batch;
      batch.last = queued.id;
      out[batch.pieces++] = {const_cast<std::byte*>(piece.data()), n};  // sending only reads
      batch.bytes += n;
      if (i > 0) batch.body_bytes += n;
      if (n < piece.size()) return batch;
    }
  }
  return batch;
}

// Moves past `bytes` sent bytes; messages that are through tell their owners when all bookkeeping is done.
void Connection::advance_queue(const Batch& batch, std::size_t bytes) {
  std::size_t body_bytes = 0;
  std::vector<io::Callback> done;
  queued_bytes_ -= bytes;
  while (bytes > 0) {
    Queued& front = queue_.front();
    const Bytes piece = front.at(front.piece).subspan(front.offset);
    const std::size_t n = std::min(piece.size(), bytes);
    bytes -= n;
    if (front.piece == 0)
      disown(n);
    else
      body_bytes += n;
    front.offset += n;
    if (n < piece.size()) break;
    front.offset = 0;
    if (++front.piece < front.pieces()) continue;
    if (front.message.on_done) done.push_back(std::move(front.message.on_done));
    queue_.pop_front();
  }
  KVD_CHECK(body_bytes <= batch.body_bytes);
  if (options_.turns != nullptr) options_.turns->spend(*this, body_bytes);
  if (options_.shaper != nullptr) {
    options_.shaper->spend(body_bytes);
    tokens_ -= std::min(tokens_, body_bytes);
  }
  for (io::Callback& on_done : done) call(std::move(on_done));
}

// Gives what is in front to a mover, if that is much of bodies and one is free. Never calls back.
bool Connection::hand_over() {
  if (options_.movers == nullptr || options_.shaper != nullptr) return false;
  const int socket = stream_->bare_socket();
  const Queued& front = queue_.front();
  const bool brings_descriptor = !front.started() && front.message.descriptor >= 0;
  if (socket < 0 || brings_descriptor || queued_bytes_ < owned_bytes_ + Movers::kBytesMin) return false;
  const bool alone = options_.movers->is_alone(*this) && options_.turns != nullptr && options_.turns->is_alone();
  shares_movers_ = !alone;
  if (alone) return false;  // it has the loop's thread for itself
  const std::span<iovec> pieces = options_.movers->ask(*this);
  if (pieces.empty()) return false;
  const Batch batch = gather_queue(pieces, Movers::kMoveBytes, Movers::kMoveBytes);
  if (batch.body_bytes < Movers::kBytesMin) return false;  // in many small pieces, or behind large heads
  move_ = batch;
  options_.movers->move(*this, socket, batch.pieces);
  return true;
}

void Connection::on_moved(const Movers::Moved& moved) {
  note_moved(moved);
  flush();
}

// A mover has come back. Calls on_done of what is through; may close.
void Connection::note_moved(const Movers::Moved& moved) {
  const Batch batch = std::exchange(move_, {});
  count_moved(moved);
  const bool full = moved.error && moved.error->code == Code::kBusy;
  full_ = full;
  advance_queue(batch, moved.bytes);
  if (moved.error && !full) close(*moved.error);
}

void Connection::count_moved(const Movers::Moved& moved) {
  counters_.moves.add();
  counters_.moved_bytes.add(moved.bytes);
  counters_.send_calls.add(moved.calls);
  counters_.bytes_out.add(moved.bytes);
  sent_bytes_ += moved.bytes;
  if (moved.bytes > 0) last_sent_ = loop_.now();
}

// No thread reads the queue's memory or uses the socket any more. Never calls back.
void Connection::leave_movers() {
  if (options_.movers == nullptr) return;
  options_.movers->leave(*this);
  if (!moves()) return;
  move_ = {};
  count_moved(options_.movers->recall(*this));
}

std::deque<Connection::Queued>::iterator Connection::find_queued(SendId id) {
  return std::find_if(queue_.begin(), queue_.end(), [id](const Queued& q) { return q.id == id; });
}

bool Connection::remove_unstarted(std::deque<Queued>::iterator at) {
  if (at == queue_.end() || at->started() || at->id <= move_.last) return false;
  io::Callback on_done = std::move(at->message.on_done);
  disown(at->message.head.size());
  queued_bytes_ -= at->message.head.size();
  for (const Bytes piece : at->message.body) queued_bytes_ -= piece.size();
  queue_.erase(at);
  call(std::move(on_done));
  return true;
}

bool Connection::withdraw(SendId id) { return remove_unstarted(find_queued(id)); }

bool Connection::abandon(SendId id) {
  auto at = find_queued(id);
  if (at == queue_.end()) return false;
  if (id <= move_.last) {
    options_.movers->enter(*this);                         // what is left goes on from the loop
    const bool flushing = std::exchange(flushing_, true);  // and not from an on_done, which may call flush()
    note_moved(options_.movers->recall(*this));
    flushing_ = flushing;
    at = find_queued(id);
    if (at == queue_.end()) return false;
  }
  if (!at->started()) return remove_unstarted(at);
  // Framing needs as many bytes as were announced; zeros fail verification at the peer.
  std::vector<Bytes> zeros;
  for (std::size_t i = std::max<std::size_t>(at->piece, 1); i < at->pieces(); ++i) {
    std::size_t left = at->at(i).size() - (i == at->piece ? at->offset : 0);
    for (; left > 0; left -= zeros.back().size()) zeros.push_back(Bytes(kZeros).first(std::min(left, kZeros.size())));
  }
  if (at->piece > 0) {
    at->piece = 1;
    at->offset = 0;
  }
  at->message.body = std::move(zeros);
  call(std::exchange(at->message.on_done, {}));
  return false;
}

// Calls an on_done, which must not destroy this.
void Connection::call(io::Callback on_done) {
  if (!on_done) return;
  ++in_callback_;
  on_done();
  --in_callback_;
}

void Connection::drop_queue() {
  std::deque<Queued> dropped = std::exchange(queue_, {});
  disown(owned_bytes_);
  queued_bytes_ = 0;
  was_congested_ = false;
  for (Queued& queued : dropped) call(std::move(queued.message.on_done));
}

void Connection::own(std::size_t bytes) {
  owned_bytes_ += bytes;
  counters_.owned_bytes.add(bytes);
}

void Connection::disown(std::size_t bytes) {
  owned_bytes_ -= bytes;
  counters_.owned_bytes.sub(bytes);
}

// What may wait for this peer: less when much waits for all of them.
std::size_t Connection::owned_bytes_allowed() const noexcept {
  return is_crowded() ? std::min(options_.owned_bytes_max, kOwnedBytesCrowded) : options_.owned_bytes_max;
}

bool Connection::is_crowded() const noexcept { return counters_.owned_bytes.value() > options_.owned_bytes_all_max; }

// Returns whether the handler was told and has queued more.
bool Connection::tell_drained() {
  const bool drained = queued_bytes_ <= options_.queue_bytes_high / 2 && owned_bytes_ <= options_.owned_bytes_max / 4;
  if (!was_congested_ || !drained || state_ != State::kOpen) return false;
  was_congested_ = false;
  ++in_callback_;
  handler_.on_drained();
  --in_callback_;
  return !queue_.empty();
}

void Connection::on_tokens(std::size_t bytes) {
  tokens_ = bytes;
  flush();
}

}  // namespace kvd::net
