// A file descriptor that travels with the bytes of a message on a unix socket (SCM_RIGHTS): one at most. Plain
// functions around sendmsg() and recvmsg(), any thread.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>

#include "io/fd.h"

namespace kvd::net {

// Ancillary data with room for one descriptor (alignment makes it two).
struct alignas(cmsghdr) DescriptorSpace {
  std::array<std::byte, CMSG_SPACE(sizeof(int))> bytes{};
};

// Makes sendmsg() send `fd` along with the first byte of `message`. Borrows both until then.
void attach_descriptor(msghdr& message, DescriptorSpace& space, int fd) noexcept;

// Lets recvmsg(), which wants MSG_CMSG_CLOEXEC, take a descriptor. Without it the kernel closes what comes.
void expect_descriptor(msghdr& message, DescriptorSpace& space) noexcept;
// The descriptor that came, if any; of several the last one, the others are closed. Requires that recvmsg() succeeded.
io::UniqueFd take_descriptor(msghdr& message) noexcept;

}  // namespace kvd::net
