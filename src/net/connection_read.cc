// The receiving half of Connection: header -> meta -> payload, with a small read-ahead so that a message that fits
// costs one call, and the next header arrives with the last of a payload.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "net/connection.h"
#include "wire/crc32c.h"

namespace kvd::net {
namespace {

constexpr std::size_t kAheadBytes = std::size_t{16} << 10;
constexpr std::size_t kDiscardBytes = std::size_t{64} << 10;
constexpr std::size_t kMetaStepBytes = std::size_t{64} << 10;
constexpr std::size_t kMetaKeepBytes = 512;

// A read-ahead that nobody needs now, for the thread's next connection that reads: messages mostly come whole, and the
// allocator takes long over so much.
thread_local std::unique_ptr<std::byte[]> spare_ahead;

constexpr std::size_t kReceivePiecesMax = 1024;                 // IOV_MAX on Linux
constexpr std::size_t kReceiveBytesMax = std::size_t{4} << 20;  // per call; loopback saturates from 1 MiB on
constexpr std::size_t kEventBytesMax = std::size_t{16} << 20;   // per turn of the loop, so that others get theirs
// A payload that comes slowly is taken in such steps, as each wake-up takes a core from what computes beside us: at
// 50 MB/s in 200 a second and not in thousands.
constexpr std::size_t kStepBytes = std::size_t{256} << 10;
constexpr Duration kStepTime = std::chrono::milliseconds(5);
constexpr Duration kReadTurnMax = std::chrono::milliseconds(1);  // engines give up on a depot that is silent for 100
// Of working through messages: many peers may ask without a pause, and the others wait for a turn of each.
constexpr Duration kMessagesTurnMax = std::chrono::microseconds(100);

// Shortens a list of pieces to `bytes_max`; returns how many are left and their bytes.
std::size_t clip(std::span<iovec> pieces, std::size_t bytes_max, std::size_t& bytes) {
  bytes = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    KVD_CHECK(pieces[i].iov_len > 0);
    pieces[i].iov_len = std::min(pieces[i].iov_len, bytes_max - bytes);
    bytes += pieces[i].iov_len;
    if (bytes == bytes_max) return i + 1;
  }
  return pieces.size();
}

}  // namespace

void Connection::read_some() {
  if (more_ && more_->waits()) return;
  if (ahead_ == nullptr) ahead_ = std::move(spare_ahead);
  if (ahead_ == nullptr) ahead_ = std::make_unique_for_overwrite<std::byte[]>(kAheadBytes);
  std::size_t budget = kEventBytesMax;
  const std::uint64_t before = counters_.bytes_in.value();
  paused_ = yielded_ = false;
  resume_timer_.disarm();
  if (held_) return update_interest();
  if (options_.turns != nullptr) options_.turns->note(*this);
  Time now = loop_.now();
  turn_end_ = after(now, kReadTurnMax);
  messages_end_ = after(now, kMessagesTurnMax);
  for (bool more = true; more && state_ == State::kOpen;) {
    const bool is_fresh = part_ == Part::kHeader && ahead_end_ == 0;  // `now`: there is nothing to do before receive()
    if (const Status consumed = consume(now); !consumed) {
      violate(consumed.error());
      break;
    }
    if (state_ != State::kOpen || paused_ || yielded_ || held_ || budget == 0 || awaits_turn()) break;
    const std::size_t got = receive(is_fresh ? now : kNever);
    more = got > 0;
    budget -= std::min(budget, got);
    if (more) now = loop_.now();
    if (more && now >= (part_ == Part::kPayload ? turn_end_ : messages_end_)) yielded_ = true;
    if (yielded_) break;
  }
  if (state_ == State::kOpen) {
    if (yielded_) go_on_later();
    if (!yielded_ && !paused_ && !held_ && !reads_wait_) wait_for_step(counters_.bytes_in.value() != before);
  }
  rest();
  update_interest();
}

// Others have their turn. No readiness tells of the read-ahead.
void Connection::go_on_later() {
  if (more_)
    more_->enter();
  else
    resume_timer_.arm(loop_.now());
}

// Whether others move their bodies now. Sets how much of a payload is received in one call.
bool Connection::awaits_turn() {
  receive_max_ = kReceiveBytesMax;
  if (options_.turns == nullptr || part_ != Part::kPayload || payload_left_ <= BodyTurns::kSmallBytes) return false;
  const std::size_t slice = options_.turns->ask(*this);
  reads_wait_ = slice == 0;
  if (!reads_wait_) receive_max_ = std::min(receive_max_, slice);
  return reads_wait_;
}

// In the middle of a payload that flows the stream counts as readable from a step's bytes on, or when the payload's end
// is there; what came by then is taken after a step's time in any case. Where there is no such mark each wake-up takes
// what has come.
void Connection::wait_for_step(bool flows) {
  const bool steps = flows && part_ == Part::kPayload;
  const std::size_t bytes = steps ? static_cast<std::size_t>(std::min<std::uint64_t>(payload_left_, kStepBytes)) : 1;
  if (stream_->set_read_mark(bytes) && bytes > 1) resume_timer_.arm_in(kStepTime);
}

// One call of the stream. `now`: kNever, or the time, where a look at the clock can be saved. Returns the bytes
// received when there may be more to receive or to consume, else 0.
std::size_t Connection::receive(Time now) {
  std::array<iovec, kReceivePiecesMax> pieces;
  std::size_t count = 0;
  std::size_t direct = 0;  // bytes that do not go to the read-ahead
  if (part_ == Part::kMeta) {
    if (meta_have_ == meta_.size() && !grow_meta()) return 0;
    direct = meta_.size() - meta_have_;
    pieces[count++] = {meta_.data() + meta_have_, direct};
  } else if (part_ == Part::kPayload) {
    count = gather_places(std::span(pieces).first(kReceivePiecesMax - 1), direct);
    if (state_ != State::kOpen) return 0;
  }
  const bool message_ends = part_ == Part::kHeader || (part_ == Part::kMeta && meta_.size() == header_.meta_bytes) ||
                            (part_ == Part::kPayload && direct == payload_left_);
  std::size_t wanted = direct;
  if (message_ends) {
    pieces[count++] = {ahead_.get() + ahead_end_, kAheadBytes - ahead_end_};
    wanted += kAheadBytes - ahead_end_;
  }
  const Result<std::size_t> received =
      stream_->receive(std::span(pieces).first(count), options_.takes_descriptors ? &descriptor_ : nullptr);
  counters_.recv_calls.add();
  if (!received || *received == 0) {
    if (received) close(Error{Code::kUnavailable, 0, "the peer closed the connection"});
    if (!received && received.error().code != Code::kBusy) close(received.error());
    return 0;
  }
  const std::size_t got = *received;
  counters_.bytes_in.add(got);
  received_bytes_ += got;
  last_received_ = now == kNever ? loop_.now() : now;
  const std::size_t in_place = std::min(got, direct);
  ahead_end_ += got - in_place;
  if (part_ == Part::kMeta) note_meta(in_place);
  if (part_ == Part::kPayload && options_.turns != nullptr) options_.turns->spend(*this, in_place);
  if (part_ == Part::kPayload) landed(in_place);
  if (got == wanted) return got;
  // Less than asked for: the stream is empty. What came is consumed now, the loop calls again when there is more.
  if (const Status consumed = consume(last_received_); !consumed) violate(consumed.error());
  return 0;
}

// Asks the handler where the payload goes; at most one call's worth. `wanted` = bytes of the pieces.
std::size_t Connection::gather_places(std::span<iovec> out, std::size_t& wanted) {
  const std::size_t bytes_max = static_cast<std::size_t>(std::min<std::uint64_t>(payload_left_, receive_max_));
  ++in_callback_;
  const std::size_t count = handler_.payload_places(out);
  --in_callback_;
  KVD_CHECK(count <= out.size());
  if (count > 0) return clip(out.first(count), bytes_max, wanted);
  if (discard_ == nullptr) discard_ = std::make_unique<std::byte[]>(kDiscardBytes);
  // The same scratch many times over: its content is nobody's.
  const std::size_t times = std::min(out.size(), (bytes_max + kDiscardBytes - 1) / kDiscardBytes);
  std::fill_n(out.begin(), times, iovec{discard_.get(), kDiscardBytes});
  return clip(out.first(times), bytes_max, wanted);
}

void Connection::landed(std::size_t bytes) {
  if (bytes == 0) return;
  payload_left_ -= bytes;
  ++in_callback_;
  handler_.payload_landed(bytes);
  --in_callback_;
}

// Works through the read-ahead, message by message, until it holds no complete part any more, until the replies of what
// it held are too many, or until others have their turn. `now` was a moment ago.
Status Connection::consume(Time now) {
  const Time turn_end = std::min(turn_end_, after(now, kMessagesTurnMax));
  for (bool more = true; more && state_ == State::kOpen;) {
    paused_ = part_ == Part::kHeader && owned_bytes_ > owned_bytes_allowed();
    if (paused_ || held_) break;
    Status taken;
    switch (part_) {
      case Part::kHeader: taken = take_header(more); break;
      case Part::kMeta: taken = take_meta(more); break;
      case Part::kPayload: taken = take_payload(more); break;
    }
    if (!taken) return taken;
    yielded_ = part_ == Part::kHeader && ahead_at_ != ahead_end_ && loop_.now() >= turn_end;
    if (yielded_) break;
  }
  // Room for a whole header behind what is left; in the other parts nothing is left.
  if (ahead_at_ > 0) {
    std::memmove(ahead_.get(), ahead_.get() + ahead_at_, ahead_end_ - ahead_at_);
    ahead_end_ -= ahead_at_;
    ahead_at_ = 0;
  }
  return {};
}

Status Connection::take_header(bool& more) {
  const Bytes have(ahead_.get() + ahead_at_, ahead_end_ - ahead_at_);
  if (!wire::can_be_header(have)) return fail(Code::kInvalid, "the peer does not speak the kvdepot protocol");
  if (have.size() < wire::kHeaderBytes) {
    more = false;
    return {};
  }
  const Result<wire::Header> header = wire::decode_header(have);
  if (!header) return fail(header.error());
  if (header->meta_bytes > options_.meta_bytes_max) {
    return fail(Code::kCorrupt, "the message's structure is longer than allowed here");
  }
  header_ = *header;
  ++messages_;
  ahead_at_ += wire::kHeaderBytes;
  part_ = Part::kMeta;
  meta_have_ = 0;
  meta_crc_ = 0;
  if (meta_touched_ > kMetaStepBytes) {
    if (header_.meta_bytes <= kMetaStepBytes)
      give_back_meta();
    else
      static_cast<void>(hold_meta());  // no more than before
  }
  meta_.resize(std::min<std::size_t>(header_.meta_bytes, kMetaStepBytes));
  return {};
}

// As bytes come: a header alone makes nobody allocate 4 MiB. Who has sent a step may send the rest: room for that is
// made once, and touched as it comes, so that nothing is moved in a turn. False: it was closed, as there is too much of
// all connections.
bool Connection::grow_meta() {
  meta_.reserve(header_.meta_bytes);
  meta_.resize(std::min<std::size_t>(header_.meta_bytes, meta_.size() + kMetaStepBytes));
  if (hold_meta()) return true;
  close(kTooMuchUnfinished);
  return false;
}

bool Connection::hold_meta() {
  meta_touched_ = std::max(meta_touched_, meta_.size());
  return !held_meta_ || held_meta_->hold(meta_touched_, messages_);
}

void Connection::give_back_meta() {
  std::vector<std::byte>().swap(meta_);  // assigning {} would keep the memory
  meta_touched_ = 0;
  if (held_meta_) held_meta_->release();
}

// The next `bytes` of the meta are there. Checked as they come: to go over 4 MiB at once takes a turn and longer.
void Connection::note_meta(std::size_t bytes) {
  meta_crc_ = wire::crc32c(Bytes(meta_).subspan(meta_have_, bytes), meta_crc_);
  meta_have_ += bytes;
}

Status Connection::take_meta(bool& more) {
  const std::size_t n = std::min(ahead_end_ - ahead_at_, meta_.size() - meta_have_);
  std::copy_n(ahead_.get() + ahead_at_, n, meta_.data() + meta_have_);
  ahead_at_ += n;
  note_meta(n);
  if (meta_have_ < header_.meta_bytes) {
    more = false;
    return {};
  }
  if (Status checked = wire::check_meta_crc(header_, meta_crc_); !checked) return checked;
  counters_.messages_in.add();
  payload_left_ = header_.payload_bytes();
  part_ = payload_left_ > 0 ? Part::kPayload : Part::kHeader;
  ++in_callback_;
  Status handled = handler_.on_message(header_, meta_);
  --in_callback_;
  return handled;
}

// Gives the memory of messages back when nothing more is there: a connection may be idle for ever, and there may be ten
// thousand of them. It is at hand when the next message comes.
void Connection::rest() {
  if (part_ != Part::kHeader || ahead_at_ != ahead_end_) return;
  if (ahead_ != nullptr) spare_ahead = std::move(ahead_);
  discard_.reset();
  if (meta_.capacity() > kMetaKeepBytes) give_back_meta();
}

std::size_t Connection::inbound_bytes_held() const noexcept {
  return meta_.capacity() + (ahead_ == nullptr ? 0 : kAheadBytes) + (discard_ == nullptr ? 0 : kDiscardBytes);
}

// Copies what the read-ahead caught of the payload into its places; ends the message when nothing is missing.
Status Connection::take_payload(bool& more) {
  while (payload_left_ > 0 && ahead_at_ < ahead_end_ && state_ == State::kOpen) {
    std::array<iovec, 64> pieces;
    std::size_t bytes = 0;
    const std::size_t count = gather_places(pieces, bytes);
    if (state_ != State::kOpen) return {};
    std::size_t copied = 0;
    for (std::size_t i = 0; i < count && ahead_at_ < ahead_end_; ++i) {
      const std::size_t n = std::min(pieces[i].iov_len, ahead_end_ - ahead_at_);
      std::memcpy(pieces[i].iov_base, ahead_.get() + ahead_at_, n);
      ahead_at_ += n;
      copied += n;
    }
    landed(copied);
  }
  if (state_ != State::kOpen) return {};
  if (payload_left_ > 0) {
    more = false;
    return {};
  }
  part_ = Part::kHeader;
  ++in_callback_;
  Status ended = handler_.on_payload_end();
  --in_callback_;
  return ended;
}

// The peer broke the protocol: says so if the handler has something to say, then ends.
void Connection::violate(const Error& why) {
  if (state_ != State::kOpen) return;
  counters_.protocol_errors.add();
  ++in_callback_;
  wire::Buffer text = handler_.farewell(why, Bytes(ahead_.get() + ahead_at_, ahead_end_ - ahead_at_));
  --in_callback_;
  if (text.empty()) return close(why);
  send({.head = std::move(text), .body = {}, .on_done = {}});
  close_after_flush(why);
}

}  // namespace kvd::net
