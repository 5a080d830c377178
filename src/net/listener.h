// Listener: a listening socket on a loop. Belongs to one loop; never blocks after bind().
//
// bind() takes the address at once, so that "in use" is known before a store is opened, but connections are refused
// until start(). A unix socket has mode 0600; a socket file that nobody listens on is replaced, anything else is left.
// Its name is owned through a lock on PATH.lock (flock, ends with the process), so that of several that start at once,
// also over what a crash left behind, one gets it. The lock file stays: removing it would let two hold it.
// The unix socket beside a TCP port (local_socket.h) has no file; connections of other users are closed.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "io/loop.h"
#include "io/private_fd.h"
#include "net/address.h"

namespace kvd::net {

// From where a listener may be reached.
enum class Reach : std::uint8_t { kThisHost, kAnyHost };

class Listener {
 public:
  using OnAccept = std::move_only_function<void(io::UniqueFd)>;

  // Takes the address. kBusy: somebody else listens there; kInvalid: not an address of this machine, a path that holds
  // another kind of file, or, with kThisHost, one that other machines reach; kIo.
  static Result<std::unique_ptr<Listener>> bind(io::Loop& loop, const Address& address, Reach reach = Reach::kThisHost);
  // The listener on the unix socket beside this TCP listener, with its address. kBusy: somebody has that name; kIo.
  Result<std::unique_ptr<Listener>> bind_local_socket(io::Loop& loop) const;
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Listens; on_accept gets each connection's nonblocking socket, at most 16 in a row. Must not destroy the listener.
  Status start(OnAccept on_accept);
  // The address with the port that the system chose.
  [[nodiscard]] const Address& address() const noexcept { return address_; }
  [[nodiscard]] bool is_unix() const noexcept { return same_user_only_ || address_.kind == Address::Kind::kUnix; }

 private:
  Listener(io::Loop& loop, Address address, io::UniqueFd name_lock, io::UniqueFd socket);
  void accept_some();

  Address address_;
  io::PrivateFd name_lock_;  // of a unix socket
  io::PrivateFd socket_;
  io::Watch watch_;
  io::Timer resume_;  // accepting rests for a moment when there are no descriptors left
  OnAccept on_accept_;
  std::uint64_t inode_ = 0;  // of the unix socket file, so that only our own is removed
  bool same_user_only_ = false;
};

}  // namespace kvd::net
