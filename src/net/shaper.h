// Shaper: a token bucket that several connections share, to slow a depot down to a known bandwidth on purpose (the
// benchmark's sweep over load speeds). Bodies only; headers and metas pass. Belongs to one loop.
//
// Smooth: tokens come in slices, and shares (tenants) that wait get one slice each in turn, as do the connections of a
// share. A slice is one millisecond's worth; at low rates, where a wake-up of both sides costs more than the bytes, it
// is up to four, as far as 256 KiB (which is also what a client receives at a time): 250 wake-ups a second at 50 MB/s
// instead of 1,000. At most five milliseconds' worth pile up, or two slices where those are more, so that a timer that
// is a slice late loses nothing: a pause earns a burst of at most 8 ms. Slices are no smaller than 1 KiB, which is
// longer below 256 KB/s.
#pragma once

#include <cstddef>
#include <cstdint>

#include "io/loop.h"
#include "net/share_lines.h"

namespace kvd::net {

// Somebody who waits for tokens. Leaves the line when destroyed (Shaper::leave).
class ShaperUser {
 public:
  virtual ~ShaperUser() = default;
  // `bytes` tokens are there for this user now (taken by Shaper::spend()).
  virtual void on_tokens(std::size_t bytes) = 0;

 protected:
  void set_share(const void* share) noexcept { place_.set_share(share); }

 private:
  friend class Shaper;
  ShareLines<ShaperUser>::Place place_{*this};
};

class Shaper {
 public:
  // Requires bytes_per_s > 0.
  Shaper(io::Loop& loop, std::uint64_t bytes_per_s);

  // Tokens that this user may spend now; 0 = it is in line now (once) and on_tokens() will come.
  std::size_t ask(ShaperUser& user);
  void spend(std::size_t bytes);
  void leave(ShaperUser& user);

 private:
  void refill();
  void arm();
  void serve();

  io::Loop& loop_;
  io::Timer timer_;
  std::uint64_t bytes_per_s_;
  std::uint64_t slice_bytes_;
  std::uint64_t bucket_bytes_;
  std::uint64_t tokens_ = 0;
  Time filled_{};
  ShareLines<ShaperUser> line_;
  bool serving_ = false;  // tokens are being handed out: who asks goes to the end of the line
};

}  // namespace kvd::net
