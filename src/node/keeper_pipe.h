// KeeperPipe: the depot's end of the pipe whose other end is a client's keeper (docs/formats/wire.md), and who is told
// when the last copy of that is closed, as the kernel does with a process that ends, however it ends.
//
// It is looked at from the start, so that no keeper is given where the kernel would not tell of its end. Belongs to the
// loop.
#pragma once

#include "base/result.h"
#include "io/fd.h"
#include "io/loop.h"

namespace kvd::node {

class KeeperPipe {
 public:
  explicit KeeperPipe(io::Loop& loop) : watch_(loop, [this](std::uint32_t) { end(); }) {}
  KeeperPipe(const KeeperPipe&) = delete;
  KeeperPipe& operator=(const KeeperPipe&) = delete;

  // Makes it, once, and returns the client's end. kNoSpace: there are no descriptors; kIo: as Watch::start().
  Result<io::UniqueFd> open();
  // Some copy of the client's end is open, and nobody has written to it, which none does that wants to keep something.
  [[nodiscard]] bool held() const noexcept { return read_end_.ok(); }
  // Comes when that is over; may destroy this.
  io::Callback on_end;

 private:
  void end();

  io::UniqueFd read_end_;
  io::Watch watch_;  // goes before what it looks at
};

}  // namespace kvd::node
