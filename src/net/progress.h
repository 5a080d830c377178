// Progress: whether a peer that is waited for moves enough: since when, and from which byte on. A connection has one
// for what it receives and one for what it sends. A plain value; times are of the connection's loop.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace kvd::net {

class Progress {
 public:
  // How much is enough: so many bytes in that time.
  struct Pace {
    Duration limit{};
    std::uint64_t bytes_min = 0;
  };

  [[nodiscard]] bool watched() const noexcept { return watched_; }
  // The peer is not what is waited for.
  void stop() noexcept { watched_ = false; }
  // It is, after it has moved so many bytes, for a message or command of this number: another one begins anew.
  void watch(Time now, std::uint64_t moved, std::uint64_t number = 0) noexcept {
    if (watched_ && number == number_) return;
    watched_ = true;
    number_ = number;
    begin(now, moved);
  }
  // When it is too slow if it moves nothing more from now on; begins anew when enough has moved in time.
  [[nodiscard]] Time slow_at(Time now, std::uint64_t moved, const Pace& pace) noexcept {
    if (!watched_) return kNever;
    if (now >= after(began_, pace.limit) && moved >= bytes_ + pace.bytes_min) begin(now, moved);
    return after(began_, pace.limit);
  }

 private:
  void begin(Time now, std::uint64_t moved) noexcept {
    began_ = now;
    bytes_ = moved;
  }

  bool watched_ = false;
  std::uint64_t number_ = 0;
  Time began_{};
  std::uint64_t bytes_ = 0;  // moved until then
};

}  // namespace kvd::net
