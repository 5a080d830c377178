// Congestion control over loopback. Plain function; any thread.
#pragma once

namespace kvd::net {

// Takes Reno for a TCP socket whose other end is on this machine. No network is between the two ends, so no sender has
// to be slow: where the system's own choice paces what it sends (BBR), it halves what loopback gives and lets it stall
// for tens of milliseconds. Reno is in every kernel and open to every user; where it cannot be had, the system's choice
// stays. To be said before the connection is there, of a listening socket for those that it accepts: a socket that once
// had BBR goes on to send by timers behind a change (Linux, sk_pacing_status), each of them an interrupt to be set.
void do_not_pace(int socket) noexcept;

}  // namespace kvd::net
