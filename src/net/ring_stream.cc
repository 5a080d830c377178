#include "net/ring_stream.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"

namespace kvd::net {
namespace {

constexpr int kWakeReadsMax = 16;  // of 256 bytes: what more has come is for the next turn

Bytes bytes_of(const iovec& piece) noexcept { return {static_cast<const std::byte*>(piece.iov_base), piece.iov_len}; }

}  // namespace

RingStream::RingStream(std::unique_ptr<io::Stream> socket) : socket_(std::move(socket)) {
  KVD_CHECK(socket_ != nullptr);
}

RingStream::~RingStream() { close(); }

Status RingStream::start(io::Loop& loop, io::Watch::OnReady on_ready) {
  loop_ = &loop;
  on_ready_ = std::move(on_ready);
  return socket_->start(loop, [this](std::uint32_t ready) { on_socket(ready); });
}

void RingStream::use(std::unique_ptr<RingMemory> memory, Side side) {
  KVD_CHECK(loop_ != nullptr && memory_ == nullptr);
  memory_ = std::move(memory);
  const bool depot = side == Side::kDepot;
  reader_.emplace(*memory_, depot ? 0 : 1);
  writer_.emplace(*memory_, depot ? 1 : 0);
  loop_->add(*this);
  registered_ = true;
  if (const Status wanted = socket_->want(io::Watch::kRead); !wanted) ended_ = wanted.error();
}

Status RingStream::want(std::uint32_t interest) {
  interest_ = interest;
  return memory_ == nullptr ? socket_->want(interest) : Status{};
}

// The socket has something: content, or only a knock.
void RingStream::on_socket(std::uint32_t ready) {
  if (memory_ == nullptr) return on_ready_(ready);
  std::array<std::byte, 256> knocks;
  const std::array<iovec, 1> place{{{knocks.data(), knocks.size()}}};
  for (int i = 0; i < kWakeReadsMax && !ended_; ++i) {
    const Result<std::size_t> got = socket_->receive(place, nullptr);
    if (!got && got.error().code == Code::kBusy) break;
    if (!got) ended_ = got.error();
    if (got && *got == 0) ended_ = Error{Code::kOk, 0, ""};
    if (got && *got < knocks.size()) break;
  }
  // A hang-up would be told of again and again.
  if (ended_) static_cast<void>(socket_->want(io::Watch::kNone));
}

// What can be done now of what is wanted. The end counts as both, as it does with sockets.
std::uint32_t RingStream::readiness() {
  if (interest_ == io::Watch::kNone || memory_ == nullptr) return io::Watch::kNone;
  if (ended_) return io::Watch::kRead | io::Watch::kWrite;
  std::uint32_t ready = io::Watch::kNone;
  if ((interest_ & io::Watch::kRead) != 0 && reader_->available().value_or(1) > 0) ready |= io::Watch::kRead;
  if ((interest_ & io::Watch::kWrite) != 0 && writer_->room(1).value_or(1) > 0) ready |= io::Watch::kWrite;
  return ready;
}

void RingStream::before_sleep() {
  announced_ = interest_;
  if ((announced_ & io::Watch::kRead) != 0) reader_->announce(true);
  if ((announced_ & io::Watch::kWrite) != 0) writer_->announce(true);
}

void RingStream::after_sleep() {
  const std::uint32_t announced = std::exchange(announced_, io::Watch::kNone);
  if ((announced & io::Watch::kRead) != 0) reader_->announce(false);
  if ((announced & io::Watch::kWrite) != 0) writer_->announce(false);
}

void RingStream::run() {
  const std::uint32_t ready = readiness();
  if (ready != io::Watch::kNone) on_ready_(ready);
}

Result<std::size_t> RingStream::receive(std::span<const iovec> places, io::PrivateFd* descriptor) {
  if (memory_ == nullptr) return socket_->receive(places, descriptor);
  const Result<std::size_t> there = reader_->available();
  if (!there) return there;
  if (*there == 0 && !ended_) return fail(Code::kBusy, "receive from the peer");
  if (*there == 0) return ended_->code == Code::kOk ? Result<std::size_t>(0) : fail(*ended_);
  std::size_t left = *there;
  for (const iovec& place : places) {
    const std::size_t n = std::min(left, place.iov_len);
    reader_->take({static_cast<std::byte*>(place.iov_base), n});
    left -= n;
    if (left == 0) break;
  }
  if (reader_->publish()) wake_peer();
  loop_->expect();
  return *there - left;
}

Result<std::size_t> RingStream::send(std::span<const iovec> pieces, int descriptor) {
  if (memory_ == nullptr) return socket_->send(pieces, descriptor);
  KVD_CHECK(descriptor < 0);
  if (ended_) return fail(ended_->code == Code::kOk ? Error{Code::kUnavailable, 0, "send to the peer"} : *ended_);
  std::size_t wanted = 0;
  for (const iovec& piece : pieces) wanted += piece.iov_len;
  const Result<std::size_t> room = writer_->room(wanted);
  if (!room) return room;
  if (*room == 0) return fail(Code::kBusy, "send to the peer");
  std::size_t left = *room;
  for (const iovec& piece : pieces) {
    const std::size_t n = std::min(left, piece.iov_len);
    writer_->put(bytes_of(piece).first(n));
    left -= n;
    if (left == 0) break;
  }
  if (writer_->publish()) wake_peer();
  loop_->expect();
  return *room - left;
}

// A socket that takes no byte has knocks that the peer did not look at: it will wake up. One whose peer is gone says so
// when it is read.
void RingStream::wake_peer() {
  std::byte knock{1};
  const std::array<iovec, 1> piece{{{&knock, 1}}};
  const Result<std::size_t> sent = socket_->send(piece, -1);
  if (!sent && sent.error().code != Code::kBusy && !ended_) ended_ = sent.error();
}

void RingStream::close() {
  if (std::exchange(registered_, false)) loop_->remove(*this);
  interest_ = io::Watch::kNone;
  socket_->close();
}

}  // namespace kvd::net
