// Whose client keeps a part of the pool without reading what it was sent, among sessions of either protocol.
#pragma once

#include "base/time.h"

namespace kvd::node {

// The session of a map of them that is stuck for longest, since before `since`, which becomes that moment; null: none.
template <class Sessions>
auto most_stuck(const Sessions& sessions, Time& since) -> decltype(sessions.begin()->second.get()) {
  decltype(sessions.begin()->second.get()) found = nullptr;
  for (const auto& [number, session] : sessions) {
    if (session->stuck_since() >= since) continue;
    since = session->stuck_since();
    found = session.get();
  }
  return found;
}

}  // namespace kvd::node
