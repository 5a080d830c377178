#include "net/descriptor.h"

#include <cstring>

namespace kvd::net {

void attach_descriptor(msghdr& message, DescriptorSpace& space, int fd) noexcept {
  message.msg_control = space.bytes.data();
  message.msg_controllen = space.bytes.size();
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
}

void expect_descriptor(msghdr& message, DescriptorSpace& space) noexcept {
  message.msg_control = space.bytes.data();
  message.msg_controllen = space.bytes.size();
}

io::UniqueFd take_descriptor(msghdr& message) noexcept {
  io::UniqueFd taken;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
      taken.reset(fd);
    }
  }
  return taken;
}

}  // namespace kvd::net
