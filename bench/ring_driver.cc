// ring_driver: round trips through the rings of a running depot, without a client's threads, as JSON on stdout.
//
//   ring_driver unix:///PATH --trips 20000 --idle-trips 200
//
// Stores one record of 4 KiB, then asks for it over a connection of its own on this thread's loop: a GET, answered by a
// view, which the next request's batch gives back. Busy: one behind the other, as fast as they come. From idle: 2 ms
// apart, so that both sides sleep. Prints the medians and 99th percentiles in nanoseconds, and those of PING.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "kvdepot/client.h"
#include "net/connection.h"
#include "net/dialer.h"
#include "net/ring_stream.h"
#include "net/shared_memory.h"
#include "wire/message.h"

namespace {

using namespace kvd;

constexpr std::uint32_t kSlab = 4096;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "ring_driver: %s\n", what);
  std::exit(1);
}

template <class T>
T must(Result<T> result) {
  if (!result) die(result.error().what);
  return std::move(*result);
}

Namespace space() {
  Namespace ns;
  ns.fingerprint = "ring driver";
  ns.groups.push_back({.layers = 1, .slab_bytes = kSlab, .block_tokens = 16});
  return ns;
}

const Key kKey{1, 2};
KeyList keys() { return {.bytes = std::as_bytes(std::span(&kKey, 1)), .key_bytes = sizeof(Key), .native = true}; }

void store(const std::string& depot) {
  const auto client = must(Client::open(depot, {.require_connection = true}));
  std::vector<std::byte> bytes(kSlab, std::byte{7});
  const std::uint64_t zero = 0;
  const NamespaceId ns = must(client->open_namespace(space()));
  const RegionId region = must(client->register_region(bytes.data(), bytes.size()));
  const OpId op = must(client->multiput(
      {.ns = ns, .keys = keys(), .src = {.region = region, .layer_offset = {&zero, 1}, .block_offset = {&zero, 1}}}));
  if (must(client->wait(op, kWholeOp, std::chrono::seconds(10))).code != Code::kOk) die("the record was not stored");
  client->release(op);
}

class Trips final : public net::MessageHandler {
 public:
  Trips(io::Loop& loop, const std::string& depot) : loop_(loop) {
    net::SocketDialer dialer(loop);
    std::unique_ptr<io::Stream> socket;
    dialer.connect(must(net::resolve(must(net::parse_address(depot)))), kNever,
                   [&](Result<std::unique_ptr<io::Stream>> stream) { socket = must(std::move(stream)); });
    while (socket == nullptr) loop.run_once(Duration::max());
    auto stream = std::make_unique<net::RingStream>(std::move(socket));
    ring_ = stream.get();
    connection_ = std::make_unique<net::Connection>(loop, *this, counters_, std::move(stream),
                                                    net::ConnectionOptions{.takes_descriptors = true});
    if (!connection_->start()) die("the connection does not start");
    wire::Hello hello;
    hello.features = wire::kFeatureSharedMemory | wire::kFeatureRings;
    send(wire::frame({}, hello));
    while (!ring_->uses_rings()) loop.run_once(Duration::max());
    round_trip(wire::frame({.request_id = 1}, wire::Open{space()}));
  }

  Duration round_trip(wire::Buffer request) {
    answered_ = false;
    const Time begun = loop_.now();
    send(std::move(request));
    while (!answered_) loop_.run_once(Duration::max());
    return loop_.now() - begun;
  }
  Duration ping() { return round_trip(wire::frame({.request_id = 2}, wire::Ping{})); }
  Duration get() {
    if (view_) {
      const std::uint64_t view = *std::exchange(view_, std::nullopt);
      connection_->send({.head = wire::frame({.request_id = 4}, wire::Release{wire::U64View(std::span(&view, 1))}),
                         .body = {},
                         .on_done = {}});
    }
    const Duration took =
        round_trip(wire::frame({.request_id = 3}, wire::Get{.ns = ns_, .shard = 0, .group = 0, .keys = keys()}));
    if (!view_) die("the depot did not answer with a view");
    return took;
  }

 private:
  void send(wire::Buffer request) {
    connection_->send({.head = std::move(request), .body = {}, .on_done = {}});
    connection_->flush();
  }
  Status on_message(const wire::Header& header, Bytes meta) override {
    if (header.status != Code::kOk) die("the depot refused a request");
    if (header.opcode == wire::Opcode::kMemory) {
      memory_ = must(
          net::SharedMemory::map(connection_->take_descriptor(), must(wire::decode<wire::Memory>(header, meta)).bytes));
    } else if (header.opcode == wire::Opcode::kRings) {
      ring_->use(must(net::RingMemory::map(connection_->take_descriptor(),
                                           must(wire::decode<wire::Rings>(header, meta)).bytes)),
                 net::RingStream::Side::kClient);
    } else if (header.opcode == wire::Opcode::kOpenReply) {
      ns_ = must(wire::decode<wire::OpenReply>(header, meta)).ns;
    } else if (header.opcode == wire::Opcode::kGetView) {
      view_ = must(wire::decode<wire::GetView>(header, meta)).view;
    }
    if (header.opcode != wire::Opcode::kHelloReply) answered_ = true;
    return {};
  }
  std::size_t payload_places(std::span<iovec>) override { return 0; }
  void payload_landed(std::size_t) override {}
  Status on_payload_end() override { return {}; }
  void on_closed(const Error& why) override { die(why.what); }

  io::Loop& loop_;
  net::NetCounters counters_;
  std::unique_ptr<net::SharedMemory> memory_;
  net::RingStream* ring_ = nullptr;
  std::unique_ptr<net::Connection> connection_;
  std::uint32_t ns_ = 0;
  std::optional<std::uint64_t> view_;
  bool answered_ = false;
};

template <class F>
void print(const char* name, std::size_t trips, Duration apart, F&& trip, const char* end) {
  std::vector<Duration> took;
  for (std::size_t i = 0; i < trips; ++i) {
    if (apart > Duration::zero()) ::usleep(static_cast<useconds_t>(apart / std::chrono::microseconds(1)));
    took.push_back(trip());
  }
  std::ranges::sort(took);
  std::printf("\"%s_p50_ns\": %lld, \"%s_p99_ns\": %lld%s", name, static_cast<long long>(took[trips / 2].count()), name,
              static_cast<long long>(took[trips * 99 / 100].count()), end);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Round trips through a depot's rings");
  std::string depot;
  std::size_t trips = 20'000, idle_trips = 200, spin_us = 50;
  app.add_option("depot", depot)->required();
  app.add_option("--trips", trips)->check(CLI::PositiveNumber);
  app.add_option("--idle-trips", idle_trips)->check(CLI::PositiveNumber);
  app.add_option("--spin-us", spin_us);
  CLI11_PARSE(app, argc, argv);
  store(depot);
  const auto loop = must(io::make_real_loop());
  loop->set_spin(std::chrono::microseconds(spin_us));
  Trips run(*loop, depot);
  constexpr Duration kApart = std::chrono::milliseconds(2);
  std::printf("{");
  print("ping", trips, Duration::zero(), [&] { return run.ping(); }, ", ");
  print("get", trips, Duration::zero(), [&] { return run.get(); }, ", ");
  print("ping_idle", idle_trips, kApart, [&] { return run.ping(); }, ", ");
  print("get_idle", idle_trips, kApart, [&] { return run.get(); }, "}\n");
  return 0;
}
