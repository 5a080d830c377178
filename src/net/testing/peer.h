// Peer: a test's end of a connection. Keeps every message that comes, with its payload in one buffer, and can be told
// to leave payload unread-into (discard), so that tests speak raw protocol to a depot or to a client.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "net/connection.h"

namespace kvd::net {

struct Received {
  wire::Header header;
  std::vector<std::byte> meta;
  std::vector<std::byte> payload;
};

class Peer : public MessageHandler {
 public:
  Peer(io::Loop& loop, std::unique_ptr<io::Stream> stream, const ConnectionOptions& options = {});
  Peer(io::Loop& loop, io::UniqueFd socket, const ConnectionOptions& options = {});

  // Sends whole messages: header, meta and, behind it, payload copied from `body`.
  SendId send(wire::Buffer head, std::vector<std::byte> body = {});
  // What the earliest MEMORY, KEEPER, ARENA or RINGS came with whose descriptor was not taken yet: when a test looks at
  // one of them, the next may have come, too.
  io::PrivateFd take_descriptor();
  // Ends the connection, and drops the descriptors that were not taken.
  void end();

  Status on_message(const wire::Header& header, Bytes meta) override;
  std::size_t payload_places(std::span<iovec> out) override;
  void payload_landed(std::size_t bytes) override;
  Status on_payload_end() override;
  void on_drained() override {
    ++drained;
    if (on_drain) on_drain();
  }
  wire::Buffer farewell(const Error& why, Bytes first_bytes) override;
  void on_closed(const Error& why) override { closed = why; }

  std::vector<Received> received;      // complete messages
  std::optional<Error> closed;         // why the connection ended
  bool discard = false;                // from now on payload gets no place
  std::size_t piece_bytes = SIZE_MAX;  // places are at most this long
  int drained = 0;
  wire::Buffer farewell_text;
  Status answer;  // what on_message() and on_payload_end() return
  std::function<void()> on_landed;
  std::function<void()> on_drain;
  std::function<void()> on_request;  // called for each message that begins
  NetCounters counters;
  std::unique_ptr<Connection> connection;

 private:
  Received partial_;
  std::deque<io::PrivateFd> descriptors_;
  std::size_t landed_ = 0;
};

// Two connected nonblocking stream sockets.
std::pair<io::UniqueFd, io::UniqueFd> make_socket_pair();
// The same over loopback TCP.
std::pair<io::UniqueFd, io::UniqueFd> make_tcp_pair();

// Runs the loop until `done`, at most five seconds of real time. Returns whether it came true.
bool run_until(io::Loop& loop, const std::function<bool()>& done);

// Bytes that differ from place to place, from a seed.
std::vector<std::byte> make_bytes(std::size_t n, std::uint64_t seed);

}  // namespace kvd::net
