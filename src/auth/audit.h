// Audit: which attempts of peers that are refused, or cut off, are told of in the log: of each peer one line a period,
// with the number of those that were not told since its last line. Peers beyond a bound share lines, so that neither
// the log nor this grows with them. One owner, one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/time.h"

namespace kvd::auth {

class Audit {
 public:
  // `what` begins each line and stays there, as a literal does.
  explicit Audit(std::string_view what = "refused", Duration period = std::chrono::seconds(10),
                 std::size_t peers_max = 256) noexcept
      : what_(what), period_(period), peers_max_(peers_max) {}

  // The line for this attempt; nullopt: it is counted for the peer's next one.
  std::optional<std::string> line(std::string_view peer, std::string_view why, Time now);
  // Writes it.
  void warn(Log& log, Time now, std::string_view peer, std::string_view why);

 private:
  struct Peer {
    Time next = Time::min();  // no line before
    std::uint64_t untold = 0;
  };
  Peer& peer_of(std::string& name, Time now);

  std::string_view what_;
  Duration period_;
  std::size_t peers_max_;
  std::map<std::string, Peer, std::less<>> peers_;
  Peer others_;
};

}  // namespace kvd::auth
