// Rig: a node on a loop of its own with a store in memory or in a temporary folder, and clients that speak raw protocol
// to it. For tests; one thread runs node and clients.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "net/address.h"
#include "net/socket_stream.h"
#include "net/testing/peer.h"
#include "node/node.h"
#include "wire/message.h"

namespace kvd::node {

// A client that has said HELLO (unless told not to) and waits for each answer.
class RawClient {
 public:
  RawClient(io::Loop& loop, std::unique_ptr<io::Stream> stream, bool hello = true, std::uint64_t features = 0);
  RawClient(io::Loop& loop, io::UniqueFd socket, bool hello = true, std::uint64_t features = 0)
      : RawClient(loop, net::make_socket_stream(std::move(socket)), hello, features) {}

  // Sends bytes and returns the next message that comes. Fails the test when none comes or the connection ends.
  net::Received call(wire::Buffer request, std::vector<std::byte> body = {});
  net::Received next();
  void send(wire::Buffer request, std::vector<std::byte> body = {}) { peer_.send(std::move(request), std::move(body)); }
  // Waits until the node has ended the connection; how it looked from here.
  bool ended();
  // Goes away without a word.
  void vanish() { peer_.end(); }
  std::uint32_t open(const Namespace& ns);
  net::Peer& peer() noexcept { return peer_; }
  std::uint64_t new_id() noexcept { return next_id_++; }
  // What the node agreed to.
  [[nodiscard]] std::uint64_t features() const noexcept { return features_; }

 private:
  io::Loop& loop_;
  net::Peer peer_;
  std::size_t taken_ = 0;
  std::uint64_t next_id_ = 1;
  std::uint64_t features_ = 0;
};

// Records that a test can make again at will: slab bytes and checksums from key and layer.
class Records {
 public:
  explicit Records(const Namespace& ns) : ns_(ns) {}

  // `count` native keys that start at number `first`.
  static std::vector<std::byte> keys(std::size_t first, std::size_t count);
  [[nodiscard]] std::vector<std::byte> slab(std::size_t key, std::uint32_t layer) const;
  [[nodiscard]] std::uint64_t checksum(std::size_t key, std::uint32_t layer, std::uint16_t shard = 0) const;
  [[nodiscard]] const Namespace& ns() const noexcept { return ns_; }
  [[nodiscard]] std::uint32_t slab_bytes() const noexcept { return ns_.groups[0].slab_bytes; }
  [[nodiscard]] std::uint16_t layers() const noexcept { return ns_.groups[0].layers; }

  // PUT, and PUT data for layers [first_layer, end_layer) of keys [first, first + count).
  [[nodiscard]] wire::Buffer put(std::uint64_t id, std::uint32_t handle, std::size_t first, std::size_t count,
                                 AckLevel ack = AckLevel::kPooled, std::uint32_t deadline_ms = 0) const;
  [[nodiscard]] wire::Buffer put_head(std::uint64_t id, std::size_t first, std::size_t count, std::uint32_t first_layer,
                                      std::uint32_t end_layer) const;
  // The same as a part: slabs [first_slab, end_slab) in the order of layers and, within a layer, of keys.
  [[nodiscard]] wire::Buffer part_head(std::uint64_t id, std::size_t first, std::size_t count, std::size_t first_slab,
                                       std::size_t end_slab) const;
  [[nodiscard]] std::vector<std::byte> part_body(std::size_t first, std::size_t count, std::size_t first_slab,
                                                 std::size_t end_slab) const;
  [[nodiscard]] std::vector<std::byte> put_body(std::size_t first, std::size_t count, std::uint32_t first_layer,
                                                std::uint32_t end_layer) const;
  [[nodiscard]] static wire::Buffer get(std::uint64_t id, std::uint32_t handle, std::size_t first, std::size_t count,
                                        bool stop = false, std::uint16_t layer_first = 0, std::uint16_t layer_count = 0,
                                        std::uint32_t deadline_ms = 0);

 private:
  Namespace ns_;
};

Namespace small_namespace(std::uint16_t layers = 3, std::uint32_t slab_bytes = 4096);

// A pool of 64 MiB, no listeners.
NodeOptions test_options();

class Rig {
 public:
  // A store in memory, or with `flash` in a temporary folder with 128 MiB of flash, unless `options` says how much.
  explicit Rig(NodeOptions options = test_options(), bool flash = false);
  ~Rig();

  // A client through a socket pair, or through the listener.
  std::unique_ptr<RawClient> connect(bool hello = true, std::uint64_t features = 0);
  std::unique_ptr<RawClient> connect_tcp(std::uint64_t features = 0);
  // Through the unix socket beside the listener's port; null where nobody listens.
  std::unique_ptr<RawClient> connect_local(std::uint64_t features);
  // Puts all layers of keys [first, first + count) through a client of its own; true when all were taken.
  bool put_all(const Records& records, std::size_t first, std::size_t count, AckLevel ack = AckLevel::kPooled);
  bool until(const std::function<bool()>& done) { return net::run_until(*loop, done); }
  // Stops the node and opens the same store again.
  void restart();
  // A number of stats_json(), e.g. stat("node", "leases").
  [[nodiscard]] std::uint64_t stat(const char* room, const char* name) const;

  std::unique_ptr<io::Loop> loop;
  RecordingLog log;
  NodeOptions options;
  std::unique_ptr<Node> node;

 private:
  Result<std::unique_ptr<io::Stream>> dial(const net::Endpoint& endpoint);

  std::string folder_;
};

}  // namespace kvd::node
