// HostileSocket: one hostile connection of a fuzz target to a Rig's node: sends what the node takes without waiting for
// ever, and reads only while it wants to. What it makes of the answers is a derived class'.
#pragma once

#include <sys/socket.h>

#include <memory>
#include <utility>

#include "net/socket_stream.h"
#include "node/testing/choices.h"
#include "node/testing/rig.h"

namespace kvd::node {

class HostileSocket {
 public:
  using Adopt = Status (Node::*)(std::unique_ptr<io::Stream>);

  HostileSocket(Rig& rig, Adopt adopt) : rig_(rig) {
    auto [near, far] = net::make_socket_pair();
    require((rig.node.get()->*adopt)(net::make_socket_stream(std::move(far))).has_value(),
            "the node takes a connection");
    socket_ = std::move(near);
  }
  virtual ~HostileSocket() = default;
  HostileSocket(const HostileSocket&) = delete;
  HostileSocket& operator=(const HostileSocket&) = delete;

  void send(Bytes bytes) {
    for (int tries = 0; tries < 20 && !bytes.empty() && !ended_; ++tries) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent > 0) bytes = bytes.subspan(static_cast<std::size_t>(sent));
      if (sent > 0) continue;
      rig_.loop->run_once(Duration::zero());
      if (reads) receive();
    }
  }
  // Takes all that has come, and looks at it.
  virtual void receive() = 0;

  bool reads = true;

 protected:
  Rig& rig_;
  io::UniqueFd socket_;
  bool ended_ = false;  // by the node
};

}  // namespace kvd::node
