// CoreRig: a Core, a FakeDepot and, between them, a Proxy, all on one SimLoop: whole conversations over real sockets in
// virtual time, on one thread. Records have known bytes, destinations are poisoned.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "client/core.h"
#include "client/region_table.h"
#include "client/request.h"
#include "client/testing/fake_depot.h"
#include "client/testing/proxy.h"
#include "io/sim/sim_loop.h"

namespace kvd::client {

inline constexpr std::byte kPoison{0xA5};

struct RigOptions {
  std::uint32_t ops_max = 16;
  std::uint32_t breaker_failures = 1;
  bool verify = true;
  bool connect = true;  // start and wait until both channels are ready
  std::uint16_t layers = 4;
  std::uint32_t slab_bytes = 4096;
  std::size_t keys = 3;         // keys "key0", "key1", ... of the requests below
  std::uint16_t key_bytes = 5;  // of each; for up to 100 of them
  bool shared_memory = false;   // straight to the depot, not through the proxy, which carries no descriptors
  bool tcp = false;             // the depot listens on a port
  std::function<Result<std::string>()> token{};  // as ChannelOptions::token
};

class CoreRig {
 public:
  explicit CoreRig(RigOptions options = {});
  ~CoreRig();

  void start_core();
  void stop_core();
  bool wait_connected(Duration limit = std::chrono::seconds(5));

  // Requests for keys 0..options.keys, all layers, over the whole memory [layer][key].
  OpId get(Deadline deadline = {.total = {}, .progress = {}}, bool stop_at_first_failure = true);
  OpId borrow(bool verify = true, Duration hold = std::chrono::seconds(10), bool stop_at_first_failure = true);
  OpId put(bool whole = true, Deadline deadline = {.total = {}, .progress = {}});
  OpId match(Deadline deadline = {.total = {}, .progress = {}}, std::uint32_t lease_ms = 0);
  OpId remove();
  OpId stats();
  void put_layer(OpId op, std::uint16_t layer);
  void cancel(OpId op);

  // Runs until the op has ended, at most `limit` of virtual time; its completion.
  Completion finish(OpId op, Duration limit = std::chrono::seconds(60));
  [[nodiscard]] bool ended(OpId op);
  void release(OpId op);

  // The bytes of record `key`, and putting all of them into the depot.
  [[nodiscard]] std::vector<std::vector<std::byte>> record(std::size_t key) const;
  void store_records();
  void store_record(std::size_t key);
  void poison();
  void fill_source();  // memory = the records
  // Slab (layer, key) in memory, and whether it holds its record's bytes or only poison.
  [[nodiscard]] MutableBytes slab(std::size_t layer, std::size_t key);
  [[nodiscard]] bool landed(std::size_t layer, std::size_t key);
  [[nodiscard]] bool poisoned(std::size_t layer, std::size_t key);
  // Of each mapping of the depot's memory, the bytes that reading would not fault on.
  [[nodiscard]] static std::vector<std::uint64_t> entered_bytes();
  // The views that the depot lent were given back, each once; waits a moment for the last.
  bool all_given_back();
  [[nodiscard]] Namespace ns_value() const;
  [[nodiscard]] std::vector<std::byte> key_list() const;

  RigOptions options;
  io::SimClock clock;
  io::SimLoop loop{clock};
  std::string dir;
  std::unique_ptr<FakeDepot> depot;
  std::unique_ptr<Proxy> proxy;
  int event_fd = -1;
  ClientState state;
  NamespaceTable namespaces;
  RegionTable regions;
  std::unique_ptr<OpTable> ops;
  std::unique_ptr<Core> core;
  NamespaceId ns = 0;
  RegionId region;
  std::vector<std::byte> memory;

 private:
  OpId submit(Result<OpRequest> request);
  std::vector<std::uint64_t> layer_offsets() const;
  std::vector<std::uint64_t> block_offsets() const;
};

using ScriptChange = std::function<void(FakeScript&)>;

// Tests on a rig whose depot shares its memory.
class SharingRigTest : public testing::Test {
 protected:
  // Connected, with all records stored; `change` has the depot's script first.
  void start(RigOptions options = {}, const ScriptChange& change = {});
  // Of a script: all layers come in one message.
  static void whole(FakeScript& script) { script.layers_per_message = 400; }

  std::unique_ptr<CoreRig> rig;
};

}  // namespace kvd::client
