#include "net/shaper.h"

#include <algorithm>

#include "base/check.h"

namespace kvd::net {
namespace {

constexpr std::uint64_t kSliceBytesMin = 1024;
constexpr std::uint64_t kLongSliceBytesMax = std::uint64_t{256} << 10;
constexpr std::uint64_t kMillisPerSecond = 1'000;
constexpr std::uint64_t kNanosPerSecond = 1'000'000'000;

// What `millis` are worth at this rate.
std::uint64_t worth(std::uint64_t bytes_per_s, std::uint64_t millis) {
  return static_cast<std::uint64_t>(__uint128_t{bytes_per_s} * millis / kMillisPerSecond);
}

std::uint64_t slice_bytes(std::uint64_t bytes_per_s) {
  return std::max({worth(bytes_per_s, 1), std::min(worth(bytes_per_s, 4), kLongSliceBytesMax), kSliceBytesMin});
}

}  // namespace

Shaper::Shaper(io::Loop& loop, std::uint64_t bytes_per_s)
    : loop_(loop),
      timer_(loop, [this] { serve(); }),
      bytes_per_s_(bytes_per_s),
      slice_bytes_(slice_bytes(bytes_per_s)),
      bucket_bytes_(std::max(worth(bytes_per_s, 5), 2 * slice_bytes_)),
      filled_(loop.now()) {
  KVD_CHECK(bytes_per_s > 0);
}

// Adds what the time since the last refill is worth; what is less than a byte's time stays for the next one.
void Shaper::refill() {
  const Time now = loop_.now();
  const auto nanos = static_cast<std::uint64_t>((now - filled_).count());
  if (nanos >= kNanosPerSecond) {
    tokens_ = bucket_bytes_;
    filled_ = now;
    return;
  }
  const std::uint64_t earned = static_cast<std::uint64_t>(__uint128_t{nanos} * bytes_per_s_ / kNanosPerSecond);
  if (earned == 0) return;
  filled_ += Duration(static_cast<std::int64_t>(__uint128_t{earned} * kNanosPerSecond / bytes_per_s_));
  tokens_ = std::min<std::uint64_t>(tokens_ + earned, bucket_bytes_);
}

std::size_t Shaper::ask(ShaperUser& user) {
  if (user.place_.waits()) return 0;
  refill();
  if (line_.empty() && !serving_ && tokens_ >= slice_bytes_) return static_cast<std::size_t>(tokens_);
  line_.enter(user.place_);
  arm();
  return 0;
}

void Shaper::spend(std::size_t bytes) {
  KVD_CHECK(bytes <= tokens_);
  tokens_ -= bytes;
}

void Shaper::leave(ShaperUser& user) { user.place_.leave(); }

// The next moment at which a whole slice is there.
void Shaper::arm() {
  if (timer_.armed() || serving_ || line_.empty()) return;
  const std::uint64_t missing = slice_bytes_ > tokens_ ? slice_bytes_ - tokens_ : 0;
  const auto nanos = static_cast<std::int64_t>(__uint128_t{missing} * kNanosPerSecond / bytes_per_s_ + 1);
  timer_.arm_in(Duration(nanos));
}

void Shaper::serve() {
  refill();
  serving_ = true;
  while (!line_.empty() && tokens_ >= slice_bytes_) {
    ShaperUser& user = line_.front();
    line_.take(user.place_);
    user.on_tokens(slice_bytes_);  // asks again, at the end of the line, when it has more to send
  }
  serving_ = false;
  arm();
}

}  // namespace kvd::net
