#include "auth/audit.h"

#include <utility>

namespace kvd::auth {

Audit::Peer& Audit::peer_of(std::string& name, Time now) {
  if (const auto at = peers_.find(name); at != peers_.end()) return at->second;
  if (peers_.size() >= peers_max_) {
    std::erase_if(peers_, [now](const auto& known) { return known.second.next <= now; });
  }
  if (peers_.size() < peers_max_) return peers_[name];
  name += " and others";
  return others_;
}

std::optional<std::string> Audit::line(std::string_view peer, std::string_view why, Time now) {
  std::string name(peer);
  Peer& known = peer_of(name, now);
  if (now < known.next) {
    ++known.untold;
    return std::nullopt;
  }
  known.next = after(now, period_);
  std::string line = std::string(what_) + " " + name + ": " + std::string(why);
  if (const std::uint64_t untold = std::exchange(known.untold, 0); untold > 0) {
    line += " (and " + std::to_string(untold) + " more since its last line)";
  }
  return line;
}

void Audit::warn(Log& log, Time now, std::string_view peer, std::string_view why) {
  if (const auto told = line(peer, why, now)) log.warn(*told);
}

}  // namespace kvd::auth
