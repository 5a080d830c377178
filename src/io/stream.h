// Stream: a connected stream of bytes, both ways: what a net::Connection moves its messages through. It may be a plain
// socket (net/socket_stream.h), encryption above another stream, or one end of a simulated connection (io/sim). Owned
// by the connection; belongs to one loop; nothing here blocks or calls back from inside.
//
// Readiness is the stream's own affair, so that what lies beneath may differ from it. It is level-triggered towards the
// user: as long as something is wanted and can be done, on_ready comes again. So a stream that holds bytes which are
// ready although its descriptor is not readable (a decrypted record) tells of them by a timer, and one that has to send
// before it can receive (a handshake) watches for that by itself and tells of reading. Handshakes take place inside:
// until one is done nothing can be received or sent, after one that failed everything ends with its error.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/loop.h"
#include "io/private_fd.h"

namespace kvd::io {

// What the peer's certificate says, on a stream that has verified it.
struct PeerCertificate {
  std::vector<std::string> names;      // DNS names, URIs and addresses; else its common name; at most 32
  std::array<std::byte, 32> sha256{};  // of all of it
  std::int64_t not_after = 0;          // its last second, since 1970 in UTC
};

class Stream {
 public:
  virtual ~Stream() = default;  // closes; silent

  // Begins to tell of readiness, with reading wanted; once. on_ready comes from the loop with bits of Watch::Interest.
  // It may call everything here, but must not destroy the stream. kIo when the loop cannot watch.
  virtual Status start(Loop& loop, Watch::OnReady on_ready) = 0;
  // What to tell of from now on: bits of Watch::Interest. An error or a hang-up is told as both, unless nothing is
  // wanted. Requires start(). Nothing changes after close(). kIo.
  virtual Status want(std::uint32_t interest) = 0;

  // Fills `places`, in order, with what has come. Fewer bytes than there is place for: no more has come yet. 0 = the
  // peer sends no more. A descriptor that came along replaces `*descriptor`, unless that is null: then it is dropped.
  // kBusy: nothing has come yet. kUnavailable: the peer is gone. Other errors end the stream as well.
  virtual Result<std::size_t> receive(std::span<const iovec> places, PrivateFd* descriptor) = 0;
  // Takes bytes of `pieces`, in order; fewer than there are: it is full now. A `descriptor` that is not negative goes
  // along with the first byte; requires is_local(). Errors as above; kBusy: not a byte can be taken.
  virtual Result<std::size_t> send(std::span<const iovec> pieces, int descriptor) = 0;
  // Nothing will be sent any more: behind what was taken the peer sees the end.
  virtual void end_sending() = 0;
  // Ends both directions now; on_ready comes no more, not even for readiness that the loop has seen. Idempotent.
  virtual void close() = 0;

  // Reading is told of from `bytes` waiting bytes on (or at the end): for long bodies, whose receiver would be woken
  // for each packet. 1 = as usual. False where the stream has no such mark. Requires start().
  virtual bool set_read_mark(std::size_t bytes) = 0;
  // Descriptors can go along: a unix socket. False after close().
  [[nodiscard]] virtual bool is_local() const noexcept = 0;
  // The socket beneath, for what sockets alone tell (the peer's user); -1 where there is none. It stays the stream's.
  [[nodiscard]] virtual int fd() const noexcept = 0;

  // The socket to which the bytes that send() takes go as they are: another thread may send them there in its place,
  // without a descriptor. -1 = there is none now. It stays the stream's, until close().
  [[nodiscard]] virtual int bare_socket() const noexcept { return -1; }

  // What is encrypted says more; nothing of this changes after close(). Encrypted: bytes that were changed on their way
  // end the stream, and a handshake, which strangers can ask for, takes time.
  [[nodiscard]] virtual bool is_secure() const noexcept { return false; }
  // Bytes that send() has taken and the stream still holds; it passes them on by itself. Written bytes can be told of
  // only when there are none.
  [[nodiscard]] virtual std::size_t unsent() const noexcept { return 0; }
  // Bytes that send() has taken and the peer's host has not, as near as that is known. A system call, with sockets.
  [[nodiscard]] virtual std::size_t untaken() const noexcept { return unsent(); }
  // Whether a byte of the peer has come, also one that receive() does not tell of (a handshake's).
  [[nodiscard]] virtual bool heard() const noexcept { return true; }
  // Whose certificate was verified in the handshake; null: none was, or not yet.
  [[nodiscard]] virtual const PeerCertificate* peer_certificate() const noexcept { return nullptr; }
  // Why the handshake of a client was refused, for the server's log; null: it was not. Static text.
  [[nodiscard]] virtual const char* refusal() const noexcept { return nullptr; }
  // Whether the peer's certificate would still be accepted, by the authorities of today. kInvalid: no, and why not.
  virtual Status judge_again() { return {}; }
};

}  // namespace kvd::io
