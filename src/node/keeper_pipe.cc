#include "node/keeper_pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace kvd::node {

Result<io::UniqueFd> KeeperPipe::open() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return fail(Code::kNoSpace, "make a client's keeper", errno);
  read_end_.reset(ends[0]);
  io::UniqueFd write_end(ends[1]);
  if (Status watched = watch_.start(read_end_.get(), io::Watch::kRead); !watched) {
    read_end_.reset();
    return fail(watched.error());
  }
  return write_end;
}

void KeeperPipe::end() {
  watch_.stop();
  read_end_.reset();
  if (on_end) std::exchange(on_end, nullptr)();
}

}  // namespace kvd::node
