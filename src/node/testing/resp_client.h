// RespClient: a Redis client of a Rig's node that speaks raw bytes through a socket pair. For tests; one thread runs
// node and clients.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/private_fd.h"
#include "node/testing/rig.h"

namespace kvd::node {

// A command as clients write it.
std::string resp_command(const std::vector<std::string>& words);
// A bulk string.
std::string resp_bulk(std::string_view text);
// `bytes` bytes that follow from `seed`.
std::string resp_text(std::size_t bytes, std::uint64_t seed);

class RespClient {
 public:
  explicit RespClient(Rig& rig);

  // Sends all of it, running the node meanwhile.
  void send(std::string_view bytes);
  // The next `bytes` bytes that come; less when none come any more.
  std::string read(std::size_t bytes);
  // What the node answers to a command: as many bytes as `expected` has. For EXPECT_EQ.
  std::string call(const std::vector<std::string>& words, std::string_view expected);
  // The next line, with its end.
  std::string line();
  // Waits until the node has ended the connection.
  bool ended();
  // Goes away without a word.
  void vanish() { socket_.reset(); }
  [[nodiscard]] int fd() const noexcept { return socket_.get(); }

 private:
  bool receive();

  Rig& rig_;
  io::PrivateFd socket_;
  std::string received_;
  bool over_ = false;
};

}  // namespace kvd::node
