#include "net/byte_connection.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"

namespace kvd::net {
namespace {

constexpr std::size_t kBytePiecesMax = 256;
constexpr std::size_t kByteReceiveMax = std::size_t{4} << 20;  // per call, as in connection_read.cc
constexpr std::size_t kByteSendMax = std::size_t{4} << 20;
constexpr std::size_t kByteTurnBytesMax = std::size_t{16} << 20;
constexpr Duration kByteTurnMax = std::chrono::milliseconds(1);
constexpr Duration kByteCommandsTurnMax = std::chrono::microseconds(100);  // as in connection_read.cc
constexpr Duration kByteFarewellLimit = std::chrono::seconds(1);
constexpr std::uint64_t kByteFarewellBytesMin = std::uint64_t{32} << 10;  // as in connection.cc
constexpr std::size_t kByteOwnedCrowded = std::size_t{64} << 10;
constexpr int kByteFarewellReadsMax = 64;  // 256 KiB

}  // namespace

ByteConnection::ByteConnection(io::Loop& loop, ByteHandler& handler, NetCounters& counters,
                               std::unique_ptr<io::Stream> stream, const Options& options)
    : loop_(loop),
      handler_(handler),
      counters_(counters),
      options_(options),
      stream_(std::move(stream)),
      stall_timer_(loop, [this] { on_stall_timer(); }),
      closed_timer_(loop, [this] { on_closed_timer(); }),
      resume_timer_(loop, [this] { on_ready(io::Watch::kRead); }) {
  KVD_CHECK(stream_ != nullptr);
  if (options_.messages == nullptr) return;
  more_.emplace(*options_.messages, [this] {
    on_ready(io::Watch::kRead);
    return false;  // it stands in line again, if there is more
  });
}

ByteConnection::~ByteConnection() {
  told_closed_ = true;
  close(Error{Code::kCancelled, 0, "the connection was destroyed"});
  drop_queue();
}

Status ByteConnection::start() {
  last_received_ = last_sent_ = loop_.now();
  return stream_->start(loop_, [this](std::uint32_t ready) { on_ready(ready); });
}

void ByteConnection::on_ready(std::uint32_t ready) {
  if ((ready & io::Watch::kWrite) != 0) full_ = false;
  if ((ready & io::Watch::kRead) != 0) read_some();
  flush();
}

void ByteConnection::set_share(const void* share) noexcept {
  BodyTurns::User::set_share(share);
  if (more_) more_->set_share(share);
}

void ByteConnection::on_body_turn() {
  if (std::exchange(reads_wait_, false) && state_ == State::kOpen && !held_) read_some();
  flush();
}

// ---- Receiving ----

void ByteConnection::read_some() {
  if (more_ && more_->waits()) return;
  if (options_.turns != nullptr) options_.turns->note(*this);
  const Time begun = loop_.now();
  std::size_t budget = kByteTurnBytesMax;
  bool more = true;
  while (more && state_ == State::kOpen && !held_) {
    const std::size_t got = receive();
    more = got > 0;
    budget -= std::min(budget, got);
    const bool whole = !handler_.within();
    if (more && (budget == 0 || loop_.now() >= after(begun, whole ? kByteCommandsTurnMax : kByteTurnMax))) {
      if (more_)  // others have their turn
        more_->enter();
      else
        resume_timer_.arm(loop_.now());
      break;
    }
  }
}

// One system call. Returns the bytes received when there may be more, else 0.
std::size_t ByteConnection::receive() {
  std::array<iovec, kBytePiecesMax> pieces;
  const std::size_t count = handler_.places(pieces);
  KVD_CHECK(count > 0 && count <= pieces.size());
  std::size_t wanted = 0;
  std::size_t used = 0;
  std::size_t bytes_max = kByteReceiveMax;
  if (options_.turns != nullptr && pieces[0].iov_len > BodyTurns::kSmallBytes) {
    bytes_max = std::min(bytes_max, options_.turns->ask(*this));
    reads_wait_ = bytes_max == 0;
    if (reads_wait_) return 0;
  }
  while (used < count && wanted < bytes_max) {
    pieces[used].iov_len = std::min(pieces[used].iov_len, bytes_max - wanted);
    wanted += pieces[used++].iov_len;
  }
  const Result<std::size_t> received = stream_->receive(std::span(pieces).first(used), nullptr);
  counters_.recv_calls.add();
  if (!received && received.error().code == Code::kBusy) return 0;
  if (!received || *received == 0) {
    close(received ? Error{Code::kUnavailable, 0, "the peer closed the connection"} : received.error());
    return 0;
  }
  const std::size_t got = *received;
  if (options_.turns != nullptr) options_.turns->spend(*this, got);
  counters_.bytes_in.add(got);
  received_bytes_ += got;
  last_received_ = loop_.now();
  if (const Status taken = handler_.landed(got); !taken) close(taken.error());
  return got == wanted ? got : 0;
}

void ByteConnection::resume() {
  if (!std::exchange(held_, false) || state_ != State::kOpen) return;
  last_received_ = loop_.now();  // the peer was not waited for
  update_interest();
}

// ---- Sending ----

void ByteConnection::send(Outgoing message) {
  queued_bytes_ += message.head.size();
  owned_bytes_ += message.head.size();
  counters_.owned_bytes.add(message.head.size());
  for (const Bytes piece : message.body) {
    KVD_CHECK(!piece.empty());
    queued_bytes_ += piece.size();
  }
  queue_.push_back({std::move(message)});
  counters_.messages_out.add();
  if (is_congested()) was_congested_ = true;
  if (state_ == State::kClosed && !closed_timer_.armed()) closed_timer_.arm(loop_.now());
}

// By what waits for this peer, or by less of it when much waits for all of them.
bool ByteConnection::is_congested() const noexcept {
  if (queued_bytes_ >= options_.queue_bytes_high) return true;
  return owned_bytes_ >= kByteOwnedCrowded && is_crowded();
}

void ByteConnection::flush() {
  if (flushing_ || state_ == State::kClosed) return;
  flushing_ = true;
  std::size_t budget = kByteTurnBytesMax;
  const Time turn_end = after(loop_.now(), kByteTurnMax);
  while (send_some(budget)) {
    if (loop_.now() >= turn_end) budget = 0;
  }
  flushing_ = false;
  if (state_ == State::kClosed) return;
  if (state_ == State::kFlushing && queue_.empty()) {
    // The peer sees the last reply and then the end, and not a reset because of bytes that nobody read.
    stream_->end_sending();
    std::array<std::byte, 4096> rest;
    const iovec place{rest.data(), rest.size()};
    for (int i = 0; i < kByteFarewellReadsMax && stream_->receive({&place, 1}, nullptr).value_or(0) > 0; ++i) {
    }
    if (stream_->unsent() == 0) return close(why_closed_);
  }
  update_interest();
  if (was_congested_ && !is_congested() && queued_bytes_ <= options_.queue_bytes_high / 2 && state_ == State::kOpen) {
    was_congested_ = false;
    handler_.on_drained();
  }
}

// Of bodies, in one call; 0: others move theirs now.
std::size_t ByteConnection::body_slice() {
  if (options_.turns == nullptr || queued_bytes_ <= owned_bytes_ + BodyTurns::kSmallBytes) return kByteSendMax;
  return std::min(options_.turns->ask(*this), kByteSendMax);
}

// One system call. Returns whether another one makes sense now.
bool ByteConnection::send_some(std::size_t& budget) {
  if (state_ == State::kClosed || queue_.empty() || full_) return false;
  if (budget == 0) {
    full_ = true;  // as good as: the loop comes back at once
    return false;
  }
  const std::size_t slice = body_slice();
  if (slice == 0) return false;
  std::array<iovec, kBytePiecesMax> pieces;
  std::size_t count = 0, wanted = 0;
  // An encrypted stream keeps what its peer does not read.
  const std::size_t bytes_max =
      std::min({budget, slice, stream_->is_secure() && is_crowded() ? kByteOwnedCrowded : kByteSendMax});
  for (auto queued = queue_.begin(); queued != queue_.end() && count < pieces.size() && wanted < bytes_max; ++queued) {
    for (std::size_t i = queued->piece; i < queued->pieces() && count < pieces.size() && wanted < bytes_max; ++i) {
      Bytes piece = queued->at(i);
      if (i == queued->piece) piece = piece.subspan(queued->offset);
      const std::size_t n = std::min(piece.size(), bytes_max - wanted);
      if (n == 0) continue;
      pieces[count++] = {const_cast<std::byte*>(piece.data()), n};  // sendmsg only reads
      wanted += n;
    }
  }
  const Result<std::size_t> sent = stream_->send(std::span(pieces).first(count), -1);
  counters_.send_calls.add();
  if (!sent) {
    full_ = sent.error().code == Code::kBusy;
    if (!full_) close(sent.error());
    return false;
  }
  const std::size_t bytes = *sent;
  if (options_.turns != nullptr) options_.turns->spend(*this, bytes);
  budget -= std::min(budget, bytes);
  counters_.bytes_out.add(bytes);
  sent_bytes_ += bytes;
  last_sent_ = loop_.now();
  full_ = bytes < wanted;
  advance(bytes);
  return !full_;
}

void ByteConnection::advance(std::size_t bytes) {
  queued_bytes_ -= bytes;
  while (!queue_.empty()) {
    Queued& front = queue_.front();
    while (front.piece < front.pieces()) {
      const std::size_t left = front.at(front.piece).size() - front.offset;
      if (bytes < left) {
        front.offset += bytes;
        return;
      }
      bytes -= left;
      front.offset = 0;
      ++front.piece;
    }
    owned_bytes_ -= front.message.head.size();
    counters_.owned_bytes.sub(front.message.head.size());
    io::Callback on_done = std::move(front.message.on_done);
    queue_.pop_front();
    if (on_done) on_done();
  }
}

void ByteConnection::drop_queue() {
  while (!queue_.empty()) {
    std::deque<Queued> dropped = std::exchange(queue_, {});
    queued_bytes_ = 0;
    counters_.owned_bytes.sub(std::exchange(owned_bytes_, 0));
    for (Queued& queued : dropped)
      if (queued.message.on_done) queued.message.on_done();
  }
}

// ---- Life ----

void ByteConnection::close(const Error& why) {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  why_closed_ = why;
  stall_timer_.disarm();
  resume_timer_.disarm();
  if (options_.turns != nullptr) options_.turns->leave(*this);
  if (more_) more_->leave();
  stream_->close();
  count_unsent();
  if (!told_closed_) closed_timer_.arm(loop_.now());
}

void ByteConnection::close_after_flush(const Error& why) {
  if (state_ != State::kOpen) return;
  state_ = State::kFlushing;
  why_closed_ = why;
  stall_timer_.arm_in(kByteFarewellLimit);
  farewell_passed_ = passed_bytes();
  update_interest();
  if (!flushing_) flush();
}

void ByteConnection::on_closed_timer() {
  drop_queue();
  if (std::exchange(told_closed_, true)) return;
  handler_.on_closed(why_closed_);  // may destroy this
}

void ByteConnection::update_interest() {
  if (state_ == State::kClosed) return;
  std::uint32_t interest = io::Watch::kNone;
  if (state_ == State::kOpen && !held_) interest |= io::Watch::kRead;
  count_unsent();
  if ((full_ && !queue_.empty()) || unsent_ > 0) interest |= io::Watch::kWrite;
  if (const Status set = stream_->want(interest); !set) return close(set.error());
  if (state_ != State::kOpen || options_.stall_limit == Duration::max()) return;
  watch_progress();
  if (!stall_timer_.armed() && (waits_for_reader() || awaits_bytes())) stall_timer_.arm_in(options_.stall_limit);
}

// Bytes that have left the stream, too, as near as that is known.
std::uint64_t ByteConnection::passed_bytes() const noexcept {
  return sent_bytes_ - std::min<std::uint64_t>(sent_bytes_, stream_->unsent());
}

// What the stream holds is in the common count of what waits for peers.
void ByteConnection::count_unsent() {
  const std::size_t now = stream_->unsent();
  if (now > unsent_) counters_.owned_bytes.add(now - unsent_);
  if (now < unsent_) counters_.owned_bytes.sub(unsent_ - now);
  unsent_ = now;
}

// Until what the peer has begun is finished, until the queue and the stream are empty.
void ByteConnection::watch_progress() {
  if (!awaits_bytes()) {
    receiving_.stop();
  } else {
    receiving_.watch(loop_.now(), received_bytes_, handler_.finished());
  }
  const bool empty = queue_.empty() && stream_->unsent() == 0;
  if (empty || (!waits_for_reader() && !sending_.watched())) {
    sending_.stop();
  } else {
    sending_.watch(loop_.now(), passed_bytes());
  }
}

void ByteConnection::on_stall_timer() {
  if (state_ == State::kFlushing) {
    if (passed_bytes() < farewell_passed_ + kByteFarewellBytesMin) return close(why_closed_);
    farewell_passed_ = passed_bytes();
    return stall_timer_.arm_in(kByteFarewellLimit);
  }
  Time next = kNever;
  if (full_) next = after(last_sent_, options_.stall_limit);
  if (awaits_bytes()) next = std::min(next, after(last_received_, options_.stall_limit));
  const Progress::Pace pace{options_.stall_limit, options_.progress_bytes_min};
  next = std::min({next, receiving_.slow_at(loop_.now(), received_bytes_, pace),
                   sending_.slow_at(loop_.now(), passed_bytes(), pace)});
  if (next == kNever) return;
  if (next > loop_.now()) return stall_timer_.arm(next);
  counters_.stalled.add();
  close(Error{Code::kTimeout, 0, "the peer made no progress"});
}

}  // namespace kvd::net
