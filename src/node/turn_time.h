// TurnTime: until when all sessions of a kind together may go on in a turn of the loop, before who has more stands in
// line (net::SliceLine): many who each have a turn's worth of work make a turn no longer than that. Owned by who owns
// the sessions, and outlives them; belongs to its loop.
#pragma once

#include "io/loop.h"

namespace kvd::node {

class TurnTime {
 public:
  TurnTime(io::Loop& loop, Duration limit) : loop_(loop), limit_(limit), timer_(loop, [] {}) {}
  TurnTime(const TurnTime&) = delete;
  TurnTime& operator=(const TurnTime&) = delete;

  // Begins with the first who asks in a turn.
  Time end() {
    if (timer_.armed()) return end_;
    const Time now = loop_.now();
    timer_.arm(now);  // the next turn
    return end_ = after(now, limit_);
  }

 private:
  io::Loop& loop_;
  const Duration limit_;
  Time end_{};
  io::Timer timer_;
};

}  // namespace kvd::node
